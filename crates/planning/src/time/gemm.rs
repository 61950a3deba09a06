//! Matrix products and streaming kernels on one accelerator.
//!
//! A product takes the longer of its operations at the rate that libraries reach and its bytes at the memory's rate (the roofline,
//! Williams 2009, doi:10.1145/1498765.1498785); the rate falls with a last wave of tiles that is partly empty (arXiv:2301.03598)
//! and with an inner size that is short against filling and draining the matrix units.

use super::constants::Constant;
use super::situation::Situation;
use crate::units::{FlopRate, Flops, Seconds, Volume};

/// Elements of the tile that one unit computes at a time: 128 x 256 (CUTLASS's largest for 16-bit inputs).
const TILE: f64 = 128.0 * 256.0;
/// Bytes of an element as it is read and written; 8-bit inputs are written in 16.
const ELEMENT: f64 = 2.0;

/// A product: `rows` x `inner` times `inner` x `columns`.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) rows: f64,
    pub(super) columns: f64,
    pub(super) inner: f64,
}

/// Times of a linear layer's three products.
#[derive(Clone, Copy, Default)]
pub(super) struct Linear {
    /// Outputs from inputs.
    pub(super) forward: Seconds,
    /// Inputs' gradients from outputs'.
    pub(super) inputs: Seconds,
    /// Weights' gradients.
    pub(super) weights: Seconds,
}

/// Seconds of a product: max(2 M N K / rate x (1 + lost waves / waves) x (1 + fill / K), bytes / memory's rate).
pub(super) fn product(situation: &Situation, product: Product, rate: FlopRate) -> Seconds {
    let Product { rows, columns, inner } = product;
    let waves = rows * columns / (TILE * situation.device.units);
    let lost = 1.0 + situation.constant(Constant::WaveLoss) / waves;
    let fill = 1.0 + situation.constant(Constant::InnerFill) / inner;
    let computed = Flops::new(2.0 * rows * columns * inner) / rate * (lost * fill);
    let bytes = Volume::new(ELEMENT * (rows * inner + inner * columns + rows * columns));
    computed.max(bytes / situation.device.memory)
}

/// A linear layer of `inner` inputs and `columns` outputs on so many tokens. Backward, rows, columns and inner change places.
pub(super) fn linear(situation: &Situation, layer: Product, rate: FlopRate) -> Linear {
    let Product { rows, columns, inner } = layer;
    Linear {
        forward: product(situation, layer, rate),
        inputs: product(situation, Product { rows, columns: inner, inner: columns }, rate),
        weights: product(situation, Product { rows: inner, columns, inner: rows }, rate),
    }
}

/// Seconds in which so many bytes stream through memory.
pub(super) fn stream(situation: &Situation, bytes: f64) -> Seconds {
    Volume::new(bytes) / situation.device.memory
}

impl std::ops::AddAssign for Linear {
    fn add_assign(&mut self, other: Self) {
        self.forward += other.forward;
        self.inputs += other.inputs;
        self.weights += other.weights;
    }
}

impl std::ops::Mul<f64> for Linear {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Linear { forward: self.forward * factor, inputs: self.inputs * factor, weights: self.weights * factor }
    }
}
