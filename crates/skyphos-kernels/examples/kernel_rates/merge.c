/* The union of two sorted sets with values; values of common indices are added. Two pointers, and a branch for each case. */
#include <stddef.h>
#include <stdint.h>

size_t merge(const uint32_t *i, const float *x, size_t m, const uint32_t *j, const float *y, size_t n,
             uint32_t *indices, float *values) {
    size_t p = 0, q = 0, k = 0;
    while (p < m && q < n) {
        if (i[p] < j[q]) {
            indices[k] = i[p];
            values[k++] = x[p++];
        } else if (j[q] < i[p]) {
            indices[k] = j[q];
            values[k++] = y[q++];
        } else {
            indices[k] = i[p];
            values[k++] = x[p++] + y[q++];
        }
    }
    while (p < m) {
        indices[k] = i[p];
        values[k++] = x[p++];
    }
    while (q < n) {
        indices[k] = j[q];
        values[k++] = y[q++];
    }
    return k;
}
