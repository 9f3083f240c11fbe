//! Statistics for the table.

/// Returns the median of `values`, or `None` if there are none. For an even number it is the mean of the two in the
/// middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// Returns the smallest of `values` that is at least as large as `percent` % of them, or `None` if there are none.
pub fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil().max(1.0);
    sorted.get(rank as usize - 1).copied()
}

/// Returns the minimum and the maximum, or `None` if there are no values.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    Some((*sorted.first()?, *sorted.last()?))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), Some(5.5));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50.0), Some(50.0));
        assert_eq!(percentile(&hundred, 99.0), Some(99.0));
        assert_eq!(percentile(&hundred, 100.0), Some(100.0));
        assert_eq!(percentile(&[3.0, 1.0], 0.0), Some(1.0));
        assert_eq!(percentile(&[], 99.0), None);
    }

    #[test]
    fn the_range_is_from_the_lowest_to_the_highest() {
        assert_eq!(range(&[2.0, -1.0, 7.0]), Some((-1.0, 7.0)));
        assert_eq!(range(&[]), None);
    }
}
