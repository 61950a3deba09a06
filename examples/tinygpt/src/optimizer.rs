//! Adam on flat vectors, with a warm-up, a cosine and a clipped norm. Plain loops in a fixed order: bit for bit the same.

use crate::random::narrow;

const BETA_1: f64 = 0.9;
const BETA_2: f64 = 0.95;
const EPSILON: f32 = 1e-8;
/// Longer gradients are scaled down to this.
const NORM_MAX: f64 = 1.0;
/// The warm-up is this share of all steps...
const WARM_UP_SHARE: u64 = 20;
/// ...but no longer than this.
const WARM_UP_STEPS_MAX: u64 = 200;
/// The cosine ends at this share of the highest rate.
const FINAL_SHARE: f64 = 0.1;

/// The optimizer's state: a first and a second moment for each parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Adam {
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
}

impl Adam {
    pub(crate) fn new(parameters: usize) -> Self {
        Adam { first: vec![0.0; parameters], second: vec![0.0; parameters] }
    }

    /// Makes the `step`th step (from 1).
    pub(crate) fn apply(&mut self, step: u64, rate: f64, gradients: &[f32], parameters: &mut [f32]) {
        let norm = gradients.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>().sqrt();
        let scale = narrow(if norm > NORM_MAX { NORM_MAX / norm } else { 1.0 });
        let exponent = i32::try_from(step).unwrap_or(i32::MAX);
        let rate = narrow(rate / (1.0 - BETA_1.powi(exponent)));
        let second_correction = narrow(1.0 / (1.0 - BETA_2.powi(exponent)));
        let (beta_1, beta_2) = (narrow(BETA_1), narrow(BETA_2));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            let gradient = gradient * scale;
            *first = beta_1 * *first + (1.0 - beta_1) * gradient;
            *second = beta_2 * *second + (1.0 - beta_2) * gradient * gradient;
            *parameter -= rate * *first / ((*second * second_correction).sqrt() + EPSILON);
        }
    }
}

/// The learning rate of the `step`th step (from 1) of `steps`.
pub(crate) fn learning_rate(step: u64, steps: u64, highest: f64) -> f64 {
    let warm_up = (steps / WARM_UP_SHARE).clamp(1, WARM_UP_STEPS_MAX);
    if step <= warm_up {
        return highest * step as f64 / warm_up as f64;
    }
    let progress = (step - warm_up) as f64 / (steps - warm_up).max(1) as f64;
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos());
    highest * (FINAL_SHARE + (1.0 - FINAL_SHARE) * cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adam_finds_the_bottom_of_a_bowl() {
        let mut parameters = vec![3.0, -2.0];
        let mut adam = Adam::new(2);
        for step in 1..=500 {
            let gradients: Vec<f32> = parameters.iter().map(|x| 2.0 * (x - 1.0)).collect();
            adam.apply(step, learning_rate(step, 500, 0.1), &gradients, &mut parameters);
        }
        assert!(parameters.iter().all(|x| (x - 1.0).abs() < 1e-2), "{parameters:?}");
    }

    #[test]
    fn the_first_step_is_as_long_as_the_rate_whatever_the_gradient() {
        for gradient in [1e-3, 1.0, 1e6] {
            let mut parameters = vec![0.0];
            Adam::new(1).apply(1, 0.01, &[gradient], &mut parameters);
            assert!((parameters[0] + 0.01).abs() < 1e-4, "{gradient}: {parameters:?}");
        }
    }

    #[test]
    fn the_rate_rises_to_the_highest_and_falls_to_a_tenth() {
        assert!((learning_rate(1, 100, 1.0) - 0.2).abs() < 1e-9);
        assert!((learning_rate(5, 100, 1.0) - 1.0).abs() < 1e-9);
        assert!((learning_rate(100, 100, 1.0) - 0.1).abs() < 1e-9);
        assert!((learning_rate(1, 1, 1.0) - 1.0).abs() < 1e-9);
        assert!((learning_rate(900, 100, 1.0) - 0.1).abs() < 1e-9);
    }
}
