//! How a part of a metric's history is kept: a version, then each point as its distance in steps and milliseconds from the one
//! before (zigzag varints, as in Protocol Buffers), and the eight bytes of its value.

use gangline_tracking::{Point, UnixMillis};

const VERSION: u8 = 1;
/// The most points of a part: with about 11 bytes each, a part fits into a page of the database with others.
pub(super) const PART_POINTS_MAX: usize = 64;

/// Packs points.
pub(super) fn pack(points: &[Point]) -> Vec<u8> {
    let mut packed = vec![VERSION];
    let mut before = (0_i64, 0_i64);
    for point in points {
        varint(&mut packed, point.step.wrapping_sub(before.0));
        varint(&mut packed, point.at.0.wrapping_sub(before.1));
        packed.extend(point.value.to_le_bytes());
        before = (point.step, point.at.0);
    }
    packed
}

/// Unpacks points; none if the bytes are damaged.
pub(super) fn unpack(packed: &[u8]) -> Option<Vec<Point>> {
    let (VERSION, mut rest) = packed.split_first().map(|(version, rest)| (*version, rest))? else { return None };
    let mut points = Vec::with_capacity(PART_POINTS_MAX);
    let mut before = (0_i64, 0_i64);
    while !rest.is_empty() {
        let step = before.0.wrapping_add(read_varint(&mut rest)?);
        let at = before.1.wrapping_add(read_varint(&mut rest)?);
        let (value, after) = rest.split_first_chunk::<8>()?;
        points.push(Point { at: UnixMillis(at), step, value: f64::from_le_bytes(*value) });
        (rest, before) = (after, (step, at));
    }
    Some(points)
}

fn varint(to: &mut Vec<u8>, value: i64) {
    let mut left = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while left >= 0x80 {
        to.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    to.push((left & 0x7f) as u8);
}

fn read_varint(from: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(step: i64, at: i64, value: f64) -> Point {
        Point { at: UnixMillis(at), step, value }
    }

    #[test]
    fn points_come_back_as_they_were() {
        let points = [
            point(0, 1_795_000_000_000, 0.5),
            point(-7, i64::MAX, f64::MIN),
            point(i64::MIN, 0, -0.0),
            point(i64::MAX, 3, 1e-300),
        ];
        assert_eq!(unpack(&pack(&points)).as_deref(), Some(points.as_slice()));
        let nan = unpack(&pack(&[point(1, 2, f64::NAN)])).expect("a point");
        assert!(nan[0].value.is_nan());
    }

    #[test]
    fn steps_of_a_training_take_eleven_bytes() {
        let points: Vec<Point> = (0..64).map(|step| point(step, 1_795_000_000_000 + 350 * step, 0.1)).collect();
        assert!(pack(&points).len() <= 1 + 10 + 64 * 11, "{}", pack(&points).len());
    }

    /// A fixture: what version 1 wrote has to be read for ever.
    #[test]
    fn what_version_1_wrote_is_read() {
        let packed = [1, 6, 200, 1, 0, 0, 0, 0, 0, 0, 240, 63, 1, 2, 0, 0, 0, 0, 0, 0, 0, 64];
        assert_eq!(pack(&[point(3, 100, 1.0), point(2, 101, 2.0)]), packed);
        assert_eq!(unpack(&packed), Some(vec![point(3, 100, 1.0), point(2, 101, 2.0)]));
    }

    #[test]
    fn damaged_bytes_are_no_points() {
        for damaged in
            [&[][..], &[2, 6, 2], &[1, 6], &[1, 6, 2, 0, 0], &[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]]
        {
            assert_eq!(unpack(damaged), None, "{damaged:?}");
        }
    }
}
