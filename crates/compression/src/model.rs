//! Computes contexts: what is known of an element before one of its planes is decoded, as a value below
//! [`VALUES`].
//!
//! Coder and decoder call the same function, with the planes above the current one. The highest byte of a
//! plain element is its exponent, on which the distribution of the mantissa's first bits depends slightly
//! (they are not uniform: Benford). With a base, an element's new exponent is near its old one; and a
//! difference in units of the last place is smaller for a larger exponent of the base, because optimizers
//! move all weights by about the learning rate.

use crate::contexts::VALUES;
use crate::element::Element;
use crate::planes::PLANES_MAX;
use crate::transform::{self, Transform};

/// Added to a context if a plane above isn't zero.
const NOT_SMALL: u16 = 256;
const _: () = assert!(VALUES == 2 * NOT_SMALL as usize);

/// The data from which a block's contexts are computed.
#[derive(Debug, Default)]
pub(crate) struct Model {
    transform: Option<Transform>,
    exponents: Vec<u8>,
    values: Vec<u16>,
}

impl Model {
    /// Prepares for a block. `base` is empty if the transform has none.
    pub(crate) fn begin(&mut self, element: Element, transform: Transform, base: &[u8]) {
        self.transform = Some(transform);
        self.exponents.clear();
        if has_exponents(element) && !base.is_empty() {
            transform::exponents(element, base, &mut self.exponents);
        }
    }

    /// Reports whether the block has no base.
    pub(crate) fn is_plain(&self) -> bool {
        self.transform == Some(Transform::Plain)
    }

    /// Returns the contexts of the plane below `above` (the highest plane first), if there are any.
    pub(crate) fn values(&mut self, above: &[&[u8]]) -> Option<&[u16]> {
        assert!(above.len() < PLANES_MAX, "there is a plane to come");
        let exponents = self.exponents.iter().copied().map(u16::from);
        self.values.clear();
        match (self.transform?, above.first()) {
            (Transform::Plain, Some(own)) => self.values.extend(own.iter().copied().map(u16::from)),
            (Transform::Plain, None) => return None,
            (_, None) if self.exponents.is_empty() => return None,
            (_, None) => self.values.extend(exponents),
            (_, Some(highest)) => {
                self.values.extend(exponents);
                self.values.resize(highest.len(), 0);
                above.iter().for_each(|plane| mark(&mut self.values, plane));
            }
        }
        Some(&self.values)
    }
}

/// Reports whether the exponent of such an element fills a byte, from which contexts can be made.
pub(crate) fn has_exponents(element: Element) -> bool {
    element.is_float() && element.size() <= 4
}

fn mark(values: &mut [u16], plane: &[u8]) {
    for (value, byte) in values.iter_mut().zip(plane) {
        *value |= if *byte == 0 { 0 } else { NOT_SMALL };
    }
}
