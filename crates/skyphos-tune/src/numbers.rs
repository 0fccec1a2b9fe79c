//! Medians and maxima of the ranks' measurements.

/// The upper median; 0 of an empty list.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// The lower median, which one disturbed call of two cannot raise; 0 of an empty list.
pub(crate) fn lower_median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The maximum; 0 of an empty list.
pub fn largest(numbers: Vec<f64>) -> f64 {
    numbers.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_maxima() {
        for (numbers, upper, lower, most) in [
            (vec![], 0.0, 0.0, 0.0),
            (vec![3.0], 3.0, 3.0, 3.0),
            (vec![9.0, 1.0], 9.0, 1.0, 9.0),
            (vec![1.0, 9.0, 2.0], 2.0, 2.0, 9.0),
            (vec![4.0, 1.0, 3.0, 2.0], 3.0, 2.0, 4.0),
        ] {
            assert_eq!(lower_median(numbers.iter().copied()), lower);
            assert_eq!((median(numbers.clone()), largest(numbers)), (upper, most));
        }
    }
}
