//! What is found is possible and fits, nothing that was looked at is better, and what lost says why.

use super::*;
use crate::hardware::book::Book;
use crate::layout::Sharding;
use crate::model::catalog;
use crate::units::Bandwidth;
use crate::workload::{Optimizer, Precision, Task};

fn cluster(accelerators: u32) -> Cluster {
    let book = Book::built_in();
    let accelerator = book.accelerator("H100-SXM5-80GB").expect("it is in the book").value.clone();
    let fabric = crate::hardware::Fabric { per_accelerator: Bandwidth::new(50e9), latency: Seconds::new(3e-6) };
    Cluster { accelerator, accelerators, per_node: accelerators.min(8), fabric }
}

fn workload(name: &str, sequence: u64, global_batch: u64) -> Workload {
    Workload {
        model: catalog::find(name).expect("it is in the catalog"),
        task: Task::Pretrain,
        sequence,
        global_batch,
        precision: Precision::Bf16,
        optimizer: Optimizer::AdamW,
    }
}

#[test]
fn the_best_layout_fits_and_nothing_that_fits_is_faster_by_more_than_simplicity_is_worth() {
    let (workload, cluster) = (workload("llama-3.1-70b", 8_192, 128), cluster(64));
    let outcome = search(&workload, &cluster, None);
    let best = outcome.best.expect("70B fits on 64");
    assert_eq!(best.layout.check(&workload, &cluster), Ok(()));
    assert!(best.memory.fits());
    let mut fastest = f64::MAX;
    Space::usual(&workload, &cluster, None).each(&mut |layout| {
        let has_room = || Room::AtEase.has(&memory::estimate(&workload, layout, &cluster));
        if layout.check(&workload, &cluster).is_ok() && has_room() {
            fastest = fastest.min(time::estimate(&workload, layout, &cluster).total().get());
        }
    });
    assert!(best.time.total().get() <= fastest * (1.0 + SIMPLER_IS_WORTH));
    assert!(outcome.tried > outcome.fitting && outcome.fitting > 0);
}

#[test]
fn what_lost_says_why() {
    let outcome = search(&workload("llama-3.1-70b", 8_192, 128), &cluster(64), None);
    assert!(!outcome.runners_up.is_empty() && outcome.runners_up.len() <= RUNNERS_UP_MAX);
    for runner_up in &outcome.runners_up {
        match &runner_up.loss {
            Loss::Slower { factor, component, .. } => assert!(*factor >= 1.0 && !component.is_empty()),
            Loss::TooLarge { needed, capacity, .. } => assert!(needed > capacity),
            Loss::NotSimpler { factor } => assert!(*factor < 1.0),
        }
    }
}

#[test]
fn a_small_model_on_one_node_is_only_cut_by_data() {
    let best = search(&workload("llama-3.2-1b", 4_096, 64), &cluster(8), None).best.expect("1B fits");
    assert_eq!((best.layout.tensor, best.layout.pipeline, best.layout.context), (1, 1, 1));
    assert_ne!(best.layout.sharding, Sharding::None, "states are shared out all the same");
}

#[test]
fn what_fits_nowhere_says_what_it_would_need_at_least() {
    let outcome = search(&workload("llama-3.1-405b", 8_192, 8), &cluster(8), None);
    assert_eq!(outcome.best, None);
    let smallest = outcome.smallest.expect("something was tried");
    assert!(smallest.memory.fullest().occupied() > smallest.memory.capacity);
}

#[test]
fn the_software_that_is_given_is_kept() {
    for stack in [Stack::Fsdp, Stack::Megatron, Stack::DeepSpeed] {
        let best = search(&workload("llama-3.1-8b", 4_096, 64), &cluster(8), Some(stack)).best.expect("8B fits");
        assert_eq!(best.layout.stack, stack);
    }
}
