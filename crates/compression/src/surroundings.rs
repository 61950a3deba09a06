//! Predicts a byte from its surroundings in its matrix: the bytes above it and to its left.
//!
//! Adam's moments are close to products of a factor for each row and one for each column (on which Adafactor
//! relies, Shazeer and Stern 2018, arXiv 1804.04235), so that exponents are close to sums. Three decaying
//! averages follow them: of each column, of the row so far, and of those columns along the row so far; a byte
//! is expected to differ from its column as the row does from its columns.

use crate::contexts::VALUES;

/// Averages are in these fractions of a byte's unit.
const PARTS: i32 = 16;
/// Fractions of a unit in one context value: half a unit.
const PARTS_PER_VALUE: i32 = 8;
/// A column's average moves by the distance divided by 2 to this power.
const COLUMN_SHIFT: u32 = 2;
/// The same for a row's average.
const ROW_SHIFT: u32 = 3;

/// The averages at one position of a plane.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    columns: Vec<i32>,
    column: usize,
    is_first_row: bool,
    row: i32,
    columns_along: i32,
}

impl Surroundings {
    /// Prepares for a plane whose rows have this many columns, at least one.
    pub(crate) fn begin(&mut self, columns: usize) {
        self.columns.clear();
        self.columns.resize(columns, 0);
        (self.column, self.row, self.columns_along, self.is_first_row) = (0, 0, 0, true);
    }

    /// Returns the context value of the next byte.
    #[inline]
    pub(crate) fn value(&self) -> u16 {
        let expected =
            if self.is_first_row { self.row } else { self.columns[self.column] + self.row - self.columns_along };
        let most = i32::try_from(VALUES - 1).expect("512");
        u16::try_from((expected / PARTS_PER_VALUE).clamp(0, most)).expect("clamped")
    }

    /// Updates the averages with that byte.
    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        let found = PARTS * i32::from(byte);
        let column = &mut self.columns[self.column];
        if self.is_first_row {
            *column = found;
        }
        self.row += (found - self.row) >> ROW_SHIFT;
        self.columns_along += (*column - self.columns_along) >> ROW_SHIFT;
        *column += (found - *column) >> COLUMN_SHIFT;
        self.column += 1;
        if self.column == self.columns.len() {
            (self.column, self.is_first_row) = (0, false);
        }
    }

    /// Computes the context values of a whole plane.
    pub(crate) fn values(&mut self, plane: &[u8], columns: usize, values: &mut Vec<u16>) {
        self.begin(columns);
        values.clear();
        values.extend(plane.iter().map(|byte| {
            let value = self.value();
            self.push(*byte);
            value
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_expected_where_its_row_and_column_meet() {
        let of = |row: usize, column: usize| u8::try_from(100 + 3 * (column % 7) + 10 * (row % 2)).unwrap();
        let plane: Vec<u8> = (0..40 * 60).map(|place| of(place / 60, place % 60)).collect();
        let mut values = Vec::new();
        Surroundings::default().values(&plane, 60, &mut values);
        for place in 20 * 60..40 * 60 {
            let far_along = place % 60 >= 30;
            let distance = i32::from(values[place]) - 2 * i32::from(plane[place]);
            assert!(!far_along || distance.abs() <= 4, "{distance} at {place}");
        }
    }

    #[test]
    fn values_stay_below_their_limit_whatever_comes() {
        let plane: Vec<u8> = (0..1_000).map(|place| if place / 10 % 2 == 0 { 255 } else { 0 }).collect();
        let mut values = Vec::new();
        Surroundings::default().values(&plane, 3, &mut values);
        assert!(values.iter().all(|value| usize::from(*value) < VALUES));
        assert_eq!(values.len(), plane.len());
    }
}
