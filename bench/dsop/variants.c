/* The variants of DSOP (Enderlin et al., section 5) over MPI, as the paper has them: whole vectors in the first stage, and sums of
 * rank-one updates. Each rank has `pairs` pairs of vectors; the paper's ranks have one.
 *
 *   variants VARIANT N M PAIRS ITERATIONS
 *
 * Every iteration begins at a barrier and ends, on each rank, when it has the sum; the longest of all ranks counts. Rank 0 prints
 * the seconds of every iteration, the first one included, one a line.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, pairs, n, m;
static double *a, *b;     /* this rank's vectors: `pairs` rows of n numbers in a, of m numbers in b */
static double *sum;       /* n by m */
static double *all, *own; /* all: the vectors of each rank, a then b; own: a second matrix, for products and received parts */

static size_t vectors(void) { return (size_t)pairs * (size_t)(n + m); }

static void *allocate(size_t numbers) {
    void *memory = malloc((numbers ? numbers : 1) * sizeof(double));
    if (!memory) {
        fprintf(stderr, "rank %d: no memory for %zu numbers\n", rank, numbers);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

/* Adds the products of one rank's vectors to rows `first..last` of a matrix, or (`set`) assigns them: a rank-one update each. */
static void update(double *to, const double *of_a, const double *of_b, int first, int last, int from_col, int to_col, int set) {
    for (int k = 0; k < pairs; k++) {
        const double *x = of_a + (size_t)k * n, *y = of_b + (size_t)k * m;
        for (int i = first; i < last; i++) {
            double *restrict row = to + (size_t)i * m;
            const double factor = x[i];
            if (set && k == 0)
                for (int j = from_col; j < to_col; j++) row[j] = factor * y[j];
            else
                for (int j = from_col; j < to_col; j++) row[j] += factor * y[j];
        }
    }
}

static void own_product(double *to) { update(to, a, b, 0, n, 0, m, 1); }

/* Adds the products of rank p's gathered vectors to rows `first..last` of the sum, or assigns them (`set`). */
static void add_gathered(int p, int first, int last, int set) {
    const double *theirs = all + (size_t)p * vectors();
    update(sum, theirs, theirs + (size_t)pairs * n, first, last, 0, m, set);
}

static void pack(double *to) {
    memcpy(to, a, (size_t)pairs * n * sizeof(double));
    memcpy(to + (size_t)pairs * n, b, (size_t)pairs * m * sizeof(double));
}

/* Section 5.1 of the paper */
static void allgather(void) {
    double *mine = all + (size_t)rank * vectors();
    pack(mine);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DOUBLE, all, (int)vectors(), MPI_DOUBLE, MPI_COMM_WORLD);
    for (int p = 0; p < size; p++) add_gathered(p, 0, n, p == 0);
}

/* 5.1 */
static void allreduce(void) {
    own_product(own);
    MPI_Allreduce(own, sum, n * m, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static size_t bound(int part) { return (size_t)n * m * (size_t)part / (size_t)size; }

/* 5.2; pipelined (5.4): each chunk travels in segments, and one is added while the next one arrives. */
static void ring(int segments) {
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    own_product(sum);
    for (int step = 0; step < size - 1; step++) {
        const int sent = (rank + size - step) % size, got = (rank + 2 * size - step - 1) % size;
        const size_t from = bound(sent), length = bound(sent + 1) - from, to = bound(got), incoming = bound(got + 1) - to;
        MPI_Request requests[2 * 64];
        for (int s = 0; s < segments; s++) {
            const size_t lo = incoming * s / segments, hi = incoming * (s + 1) / segments;
            MPI_Irecv(own + lo, (int)(hi - lo), MPI_DOUBLE, before, s, MPI_COMM_WORLD, &requests[s]);
        }
        for (int s = 0; s < segments; s++) {
            const size_t lo = length * s / segments, hi = length * (s + 1) / segments;
            MPI_Isend(sum + from + lo, (int)(hi - lo), MPI_DOUBLE, next, s, MPI_COMM_WORLD, &requests[segments + s]);
        }
        for (int s = 0; s < segments; s++) {
            const size_t lo = incoming * s / segments, hi = incoming * (s + 1) / segments;
            MPI_Wait(&requests[s], MPI_STATUS_IGNORE);
            for (size_t k = lo; k < hi; k++) sum[to + k] += own[k];
        }
        MPI_Waitall(segments, requests + segments, MPI_STATUSES_IGNORE);
    }
    for (int step = 0; step < size - 1; step++) {
        const int sent = (rank + 1 + size - step) % size, got = (rank + 2 * size - step) % size;
        MPI_Sendrecv(sum + bound(sent), (int)(bound(sent + 1) - bound(sent)), MPI_DOUBLE, next, 0, sum + bound(got),
                     (int)(bound(got + 1) - bound(got)), MPI_DOUBLE, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static int first_row(int p) { return (int)((long long)n * p / size); }

/* Gives every rank all rows of the sum; before, each rank has only its own. */
static void gather_rows(void) {
    int *counts = malloc(sizeof(int) * size), *starts = malloc(sizeof(int) * size);
    for (int p = 0; p < size; p++) {
        counts[p] = (first_row(p + 1) - first_row(p)) * m;
        starts[p] = first_row(p) * m;
    }
    if (n % size == 0)
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DOUBLE, sum, counts[0], MPI_DOUBLE, MPI_COMM_WORLD);
    else
        MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DOUBLE, sum, counts, starts, MPI_DOUBLE, MPI_COMM_WORLD);
    free(counts);
    free(starts);
}

/* 5.3 */
static void rabenseifner(void) {
    pack(all + (size_t)rank * vectors());
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DOUBLE, all, (int)vectors(), MPI_DOUBLE, MPI_COMM_WORLD);
    /* Row by row, so that a row stays in the cache while its updates are added. */
    for (int i = first_row(rank); i < first_row(rank + 1); i++)
        for (int p = 0; p < size; p++) add_gathered(p, i, i + 1, p == 0);
    gather_rows();
}

/* 5.4: b is gathered in segments, each of which is multiplied while the next one arrives. */
static void rabenseifner_pipelined(void) {
    enum { SEGMENT = 512 };
    const int lo = first_row(rank), hi = first_row(rank + 1), segments = (m + SEGMENT - 1) / SEGMENT;
    double *all_a = all, *all_b = all + (size_t)size * pairs * n, *packed = own;
    MPI_Allgather(a, pairs * n, MPI_DOUBLE, all_a, pairs * n, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Request request = MPI_REQUEST_NULL;
    size_t place = 0, last = 0;
    for (int s = 0; s <= segments; s++) {
        const int from = s * SEGMENT, to = from + SEGMENT < m ? from + SEGMENT : m, wide = to - from;
        const size_t before = last;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (s < segments) {
            for (int k = 0; k < pairs; k++)
                memcpy(packed + (size_t)pairs * from + (size_t)k * wide, b + (size_t)k * m + from, wide * sizeof(double));
            MPI_Iallgather(packed + (size_t)pairs * from, pairs * wide, MPI_DOUBLE, all_b + place, pairs * wide, MPI_DOUBLE,
                           MPI_COMM_WORLD, &request);
            last = place;
            place += (size_t)size * pairs * wide;
        }
        if (s > 0) {
            const int start = (s - 1) * SEGMENT, cols = (start + SEGMENT < m ? start + SEGMENT : m) - start;
            for (int i = lo; i < hi; i++)
                for (int p = 0; p < size; p++)
                    for (int k = 0; k < pairs; k++) {
                        const double factor = all_a[((size_t)p * pairs + k) * n + i];
                        const double *y = all_b + before + ((size_t)p * pairs + k) * cols;
                        double *restrict row = sum + (size_t)i * m + start;
                        if (p + k == 0)
                            for (int j = 0; j < cols; j++) row[j] = factor * y[j];
                        else
                            for (int j = 0; j < cols; j++) row[j] += factor * y[j];
                    }
        }
    }
    gather_rows();
}

/* 5.4: multiplies the vectors that have arrived while others are in flight. */
static void allgather_async(void) {
    MPI_Request *requests = malloc(2 * sizeof(MPI_Request) * size);
    double *mine = all + (size_t)rank * vectors();
    int count = 0;
    pack(mine);
    for (int step = 1; step < size; step++) {
        const int from = (rank + size - step) % size;
        MPI_Irecv(all + (size_t)from * vectors(), (int)vectors(), MPI_DOUBLE, from, 0, MPI_COMM_WORLD, &requests[count++]);
    }
    for (int step = 1; step < size; step++)
        MPI_Isend(mine, (int)vectors(), MPI_DOUBLE, (rank + step) % size, 0, MPI_COMM_WORLD, &requests[count++]);
    add_gathered(rank, 0, n, 1);
    for (int k = 1; k < size; k++) {
        int which;
        MPI_Waitany(size - 1, requests, &which, MPI_STATUS_IGNORE);
        add_gathered((rank + size - 1 - which) % size, 0, n, 0);
    }
    MPI_Waitall(size - 1, requests + size - 1, MPI_STATUSES_IGNORE);
    free(requests);
}

/* 5.4: Bruck's allgather; each round multiplies the vectors that arrived in the round before. */
static void bruck_async(void) {
    int held = 1, done = 0;
    pack(all);
    for (int step = 1; held < size; step *= 2) {
        const int count = held < size - held ? held : size - held;
        MPI_Request requests[2];
        MPI_Irecv(all + (size_t)held * vectors(), (int)(count * vectors()), MPI_DOUBLE, (rank + step) % size, 0, MPI_COMM_WORLD,
                  &requests[0]);
        MPI_Isend(all, (int)(count * vectors()), MPI_DOUBLE, (rank + size - step) % size, 0, MPI_COMM_WORLD, &requests[1]);
        for (; done < held; done++) add_gathered(done, 0, n, done == 0);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        held += count;
    }
    for (; done < held; done++) add_gathered(done, 0, n, done == 0);
}

/* 5.4: recursive doubling; pipelined: in segments. Ranks >= `core`, the largest power of two, send their product first and get the
 * sum last. */
static void butterfly(int segments) {
    const size_t numbers = (size_t)n * m;
    int core = 1;
    while (core * 2 <= size) core *= 2;
    own_product(sum);
    if (rank >= core) {
        MPI_Send(sum, (int)numbers, MPI_DOUBLE, rank - core, 0, MPI_COMM_WORLD);
        MPI_Recv(sum, (int)numbers, MPI_DOUBLE, rank - core, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    if (rank + core < size) {
        MPI_Recv(own, (int)numbers, MPI_DOUBLE, rank + core, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t k = 0; k < numbers; k++) sum[k] += own[k];
    }
    for (int step = 1; step < core; step *= 2) {
        const int peer = rank ^ step;
        MPI_Request requests[2 * 64];
        for (int s = 0; s < segments; s++) {
            const size_t lo = numbers * s / segments, hi = numbers * (s + 1) / segments;
            MPI_Irecv(own + lo, (int)(hi - lo), MPI_DOUBLE, peer, s, MPI_COMM_WORLD, &requests[s]);
            MPI_Isend(sum + lo, (int)(hi - lo), MPI_DOUBLE, peer, s, MPI_COMM_WORLD, &requests[segments + s]);
        }
        for (int s = 0; s < segments; s++) {
            const size_t lo = numbers * s / segments, hi = numbers * (s + 1) / segments;
            MPI_Wait(&requests[s], MPI_STATUS_IGNORE);
            MPI_Wait(&requests[segments + s], MPI_STATUS_IGNORE); /* the segment may change only when it has been sent */
            for (size_t k = lo; k < hi; k++) sum[k] += own[k];
        }
    }
    if (rank + core < size) MPI_Send(sum, (int)numbers, MPI_DOUBLE, rank + core, 0, MPI_COMM_WORLD);
}

static void ring_plain(void) { ring(1); }
static void ring_pipelined(void) { ring(16); }
static void butterfly_plain(void) { butterfly(1); }
static void butterfly_pipelined(void) { butterfly(16); }

static const struct {
    const char *name;
    void (*run)(void);
} VARIANTS[] = {
    {"allgather", allgather},
    {"allreduce", allreduce},
    {"allreduce-ring", ring_plain},
    {"g-rabenseifner-dsop", rabenseifner},
    {"allgather-async", allgather_async},
    {"bruck-async", bruck_async},
    {"allreduce-butterfly", butterfly_plain},
    {"allreduce-ring-pipelined", ring_pipelined},
    {"allreduce-butterfly-pipelined", butterfly_pipelined},
    {"g-rabenseifner-pipelined", rabenseifner_pipelined},
};

/* Small whole numbers: their sums are exact in any order, so results can be compared exactly. */
static double number(int p, int which, int k, int i) { return (double)((p * 31 + which * 17 + k * 7 + i * 13) % 9 - 4); }

static int is_wrong(void) {
    for (int probe = 0; probe < 4000; probe++) {
        const int i = (int)((long long)probe * 7919 % n), j = (int)((long long)probe * 104729 % m);
        double want = 0;
        for (int p = 0; p < size; p++)
            for (int k = 0; k < pairs; k++) want += number(p, 0, k, i) * number(p, 1, k, j);
        if (sum[(size_t)i * m + j] != want) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    void (*run)(void) = NULL;
    for (size_t v = 0; argc == 6 && v < sizeof VARIANTS / sizeof *VARIANTS; v++)
        if (!strcmp(VARIANTS[v].name, argv[1])) run = VARIANTS[v].run;
    if (!run) {
        if (rank == 0) fprintf(stderr, "usage: %s VARIANT N M PAIRS ITERATIONS\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    n = atoi(argv[2]);
    m = atoi(argv[3]);
    pairs = atoi(argv[4]);
    const int iterations = atoi(argv[5]);
    a = allocate((size_t)pairs * n);
    b = allocate((size_t)pairs * m);
    sum = allocate((size_t)n * m);
    all = allocate((size_t)size * vectors());
    own = allocate((size_t)n * m + (size_t)pairs * m);
    for (int k = 0; k < pairs; k++) {
        for (int i = 0; i < n; i++) a[(size_t)k * n + i] = number(rank, 0, k, i);
        for (int j = 0; j < m; j++) b[(size_t)k * m + j] = number(rank, 1, k, j);
    }
    for (int iteration = 0; iteration < iterations; iteration++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        run();
        double took = MPI_Wtime() - start, longest;
        MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (is_wrong()) {
            fprintf(stderr, "rank %d: %s is wrong\n", rank, argv[1]);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        if (rank == 0) printf("%.9f\n", longest);
    }
    MPI_Finalize();
    return 0;
}
