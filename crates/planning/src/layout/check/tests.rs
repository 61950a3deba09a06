//! Layouts that are possible, and one for each rule that isn't kept.

use super::*;
use crate::fixtures::{cluster, deepseek_v2, llama_70b, pretraining};

fn said(layout: &str, accelerators: u32) -> String {
    let workload = pretraining(llama_70b(80), 8192, 512);
    Layout::parse(layout).unwrap().check(&workload, &cluster(accelerators)).unwrap_err().to_string()
}

#[test]
fn published_layouts_are_possible() {
    let workload = pretraining(llama_70b(80), 8192, 512);
    let megatron = Layout::parse("tp=4,pp=4,vp=5,dp=4,mbs=1").unwrap();
    assert_eq!(megatron.check(&workload, &cluster(64)), Ok(()));
    let sharded = Layout::parse("dp=64,zero=3").unwrap();
    assert_eq!(sharded.check(&workload, &cluster(64)), Ok(()));
    // Llama 3 405B: 126 layers on 16 stages, of which the first and the last have one less.
    let large = pretraining(llama_70b(126), 8192, 2048);
    assert_eq!(Layout::parse("tp=8,pp=16,dp=128").unwrap().check(&large, &cluster(16_384)), Ok(()));
    let mixture = pretraining(deepseek_v2(60), 4096, 1024);
    assert_eq!(Layout::parse("tp=1,pp=4,ep=32,dp=64").unwrap().check(&mixture, &cluster(256)), Ok(()));
}

#[test]
fn each_rule_that_is_broken_is_named_with_what_to_change() {
    assert_eq!(
        said("tp=4,pp=4,dp=8", 64),
        "tensor 4 x pipeline 4 x context 1 x data 8 is 128 accelerators, but there are 64: choose dp=4"
    );
    assert!(said("tp=6,pp=4,dp=4", 64).ends_with("choose tp x pp x cp that divides 64, not 24"));
    assert!(said("tp=16,pp=4", 64).starts_with("tensor parallelism 16 goes beyond the 8 accelerators"));
    assert_eq!(
        said("tp=3,sp=off", 3),
        "tensor parallelism 3 doesn't divide the query heads of llama-3-70b (64): choose 1, 2, 4, 8, 16, 32 or 64"
    );
    assert!(said("pp=7,mbs=1,dp=2", 14).contains("doesn't deal 80 layers evenly"), "{}", said("pp=7,dp=2", 14));
    assert!(said("pp=100", 100).contains("doesn't deal 80 layers"));
    assert!(said("vp=4", 1).starts_with("4 virtual stages need a pipeline"));
    assert!(
        said("dp=5,mbs=3", 5).starts_with("data parallelism x micro-batch 15 doesn't divide the global batch (512)")
    );
    assert!(
        said("dp=8,ep=4", 8).starts_with("expert parallelism 4 needs a mixture of experts, and llama-3-70b has none")
    );
    assert!(said("cp=3", 3).starts_with("twice the context parallelism 6 doesn't divide the sequence (8192)"));
    assert!(
        said("pp=8,vp=2,dp=128", 1024).contains("doesn't divide the micro-batches that interleaved stages share (4)")
    );
    assert!(
        said("dp=8,zero=1:3", 8).starts_with("the optimizer's shards 3 doesn't divide data x context parallelism (8)")
    );
    assert!(said("pp=2,dp=4,stack=deepspeed,zero=3", 8).contains("exclude each other: choose pp=1, or ZeRO-1"));
    assert!(said("tp=2,stack=plain", 2).contains("choose stack=megatron"));
}

#[test]
fn experts_are_spread_among_ranks_that_there_are() {
    let workload = pretraining(deepseek_v2(60), 4096, 1024);
    let said = |layout: &str, accelerators| {
        Layout::parse(layout).unwrap().check(&workload, &cluster(accelerators)).unwrap_err().to_string()
    };
    assert!(
        said("dp=64,ep=64", 64).starts_with("expert parallelism 64 doesn't divide the experts of deepseek-v2 (160)")
    );
    assert!(
        said("pp=2,dp=8,ep=32", 16)
            .starts_with("expert x expert tensor parallelism 32 doesn't divide the ranks of a stage (8)")
    );
}

#[test]
fn nothing_is_zero_and_nothing_overflows() {
    let workload = pretraining(llama_70b(80), 8192, 0);
    assert_eq!(Layout::default().check(&workload, &cluster(1)), Err(LayoutFault::Zero { what: "global batch" }));
    let zero = Layout { data: 0, ..Layout::default() };
    let workload = pretraining(llama_70b(80), 8192, 1);
    assert_eq!(zero.check(&workload, &cluster(1)), Err(LayoutFault::Zero { what: "data parallelism" }));
    let most = u32::MAX;
    let huge =
        Layout { tensor: most, pipeline: most, context: most, data: most, stack: Stack::Megatron, ..Layout::default() };
    assert!(matches!(huge.check(&workload, &cluster(1)), Err(LayoutFault::Product { .. })));
}

#[test]
fn layers_may_lack_the_places_of_embedding_and_head() {
    assert!(is_dealt(80, 16) && is_dealt(126, 16) && is_dealt(126, 128) && is_dealt(61, 16) && is_dealt(12, 12));
    assert!(!is_dealt(80, 7) || 7 * 12 - 80 <= PLACES_TAKEN_MAX);
    assert!(!is_dealt(4, 8) && !is_dealt(1, 2) && !is_dealt(90, 8 * 4));
}
