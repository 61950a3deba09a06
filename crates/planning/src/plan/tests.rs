//! A plan adds up, is its own document, and refuses what can't be.

use gangline_base::Money;

use super::*;
use crate::hardware::book::Book;
use crate::hardware::{Cluster, Storage, StorageUnit};
use crate::layout::Layout;
use crate::model::catalog;
use crate::reliability::FailureRate;
use crate::units::{Bandwidth, Seconds};
use crate::workload::{Optimizer, Precision, Task, Workload};

fn request(model: &str, accelerator: &str, accelerators: u32, task: Task) -> Request {
    let book = Book::built_in();
    let fabric = book.fabric("infiniband-ndr").expect("it is in the book").value;
    let slow = book.fabric("ethernet-100-node").expect("it is in the book").value;
    let accelerator = book.accelerator(accelerator).expect("it is in the book").value.clone();
    Request {
        workload: Workload {
            model: catalog::find(model).expect("it is in the catalog"),
            task,
            sequence: 4_096,
            global_batch: 64,
            precision: Precision::Bf16,
            optimizer: Optimizer::AdamW,
        },
        tokens: 1_000_000_000,
        cluster: Cluster { accelerator, accelerators, per_node: accelerators.min(8), fabric },
        fabric: "infiniband-ndr".to_owned(),
        alternatives: vec![("ethernet-100-node".to_owned(), slow)],
        layout: None,
        stack: None,
        price: Some(Price {
            hourly: Money::from_nano_dollars(2_000_000_000),
            source: "a test".to_owned(),
            as_of: Some("2026-11-22".to_owned()),
            is_stale: false,
        }),
        storage: StorageChoice {
            storage: Storage {
                name: "nvme".to_owned(),
                of: StorageUnit::Node,
                read: Bandwidth::new(6e9),
                write: Bandwidth::new(4e9),
            },
            units: 1.0,
        },
        failures: FailureRate::LLAMA_3,
        recovery: Seconds::new(300.0),
    }
}

#[test]
fn a_plan_adds_up() {
    let plan = make(&request("llama-3.1-8b", "H100-SXM5-80GB", 16, Task::FullFinetune)).expect("8B fits on 16");
    assert_eq!(plan.model.parameters, 8_030_261_248);
    assert!(plan.fits && plan.layouts_fitting > 0 && plan.layouts_tried >= plan.layouts_fitting);
    let sum: f64 = plan.step.components_seconds.values().sum();
    assert!((sum / plan.step.seconds - 1.0).abs() < 1e-9);
    for stage in &plan.memory {
        let sum: f64 = stage.components_bytes.values().sum();
        assert!((sum / stage.occupied_bytes - 1.0).abs() < 1e-9 && stage.occupied_bytes <= plan.cluster.memory_bytes);
    }
    assert!(!plan.memory.is_empty());
    assert_eq!(plan.run.steps, 1_000_000_000_u64.div_ceil(4_096 * 64));
    assert!(plan.run.expected_seconds >= plan.run.training_seconds);
    let cost = plan.cost.as_ref().expect("there is a price");
    let dollars = plan.run.accelerator_hours * 2.0;
    let told = crate::units::real(cost.total_nano_dollars.nano_dollars().unsigned_abs()) / 1e9;
    assert!((told / dollars - 1.0).abs() < 1e-6);
    assert!((plan.checkpoint.bytes / (8_030_261_248.0 * 14.0) - 1.0).abs() < 1e-9);
    let layout = Layout::parse(&plan.layout).expect("a plan's layout is one that can be given");
    assert_eq!(layout.accelerators(), 16);
}

#[test]
fn a_plan_is_its_own_document() {
    let plan = make(&request("llama-3.1-8b", "A100-SXM4-80GB", 8, Task::FullFinetune)).expect("8B fits on 8");
    let text = serde_json::to_string(&plan).expect("plain values");
    assert!(text.contains(r#""parameters":8030261248"#));
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("it is one"), plan);
}

#[test]
fn a_layout_that_is_given_is_kept_even_if_it_does_not_fit() {
    let mut given = request("llama-3.1-8b", "H100-SXM5-80GB", 8, Task::FullFinetune);
    given.layout = Some(Layout::parse("dp=8,sharding=none,mbs=8").expect("a layout"));
    let plan = make(&given).expect("a plan of it");
    assert!(!plan.fits && plan.advice[0].contains("doesn't fit"), "{:?}", plan.advice);
    assert_eq!((plan.layouts_tried, plan.runners_up.len()), (1, 0));
}

#[test]
fn a_sequence_beyond_the_models_context_is_told_with_what_it_takes() {
    let advice = |model: &str, sequence: u64| {
        let mut long = request(model, "H100-SXM5-80GB", 64, Task::FullFinetune);
        long.workload.sequence = sequence;
        make(&long).expect("64 of them hold it").advice.into_iter().find(|told| told.contains("context of"))
    };
    let told = advice("mistral-7b", 65_536).expect("it is longer");
    let stretched = "its positions have to be stretched (rope_scaling), and trained at that length";
    assert_eq!(told, format!("a sequence of 65536 tokens is longer than mistral-7b's context of 32768: {stretched}"));
    assert!(advice("opt-1.3b", 4_096).expect("it is longer").contains("a learned table"));
    assert_eq!((advice("mistral-7b", 32_768), advice("llama-3.1-8b", 65_536)), (None, None));
}

#[test]
fn what_cannot_be_is_refused_with_what_to_change() {
    let refused = |request: &Request| make(request).expect_err("it can't be").to_string();
    let base = || request("llama-3.1-70b", "H100-SXM5-80GB", 8, Task::FullFinetune);
    let mut nothing = base();
    nothing.workload.sequence = 0;
    assert!(refused(&nothing).starts_with("the sequence is 0"));
    let mut short = base();
    short.tokens = 1_000;
    assert!(refused(&short).contains("less than a step's"));
    let mut old = request("llama-3.1-70b", "V100-SXM2-16GB", 8, Task::FullFinetune);
    assert!(refused(&old).contains("compute in bf16: choose fp32, fp16"));
    old.workload.precision = Precision::Fp16;
    assert!(refused(&old).contains("fits on 8 x V100-SXM2-16GB in no way"), "{}", refused(&old));
    let mut odd = base();
    odd.cluster.accelerators = 7;
    odd.cluster.per_node = 7;
    assert!(refused(&odd).contains("no cut of"), "{}", refused(&odd));
    let mut bad = base();
    bad.layout = Some(Layout::parse("tp=3,dp=1").expect("a layout"));
    assert!(refused(&bad).contains("can't be"), "{}", refused(&bad));
}

#[test]
fn of_a_fleet_only_what_is_faster_or_cheaper_is_told_and_the_goal_picks() {
    use crate::plan::fleet::{Goal, choose};
    let requests =
        || [8, 16, 32].into_iter().map(|count| request("llama-3.1-8b", "H100-SXM5-80GB", count, Task::FullFinetune));
    let fleet = choose(requests(), Goal::Cheapest).expect("8B fits");
    let times: Vec<f64> = fleet.front.iter().map(|plan| plan.run.expected_seconds).collect();
    let costs: Vec<i64> =
        fleet.front.iter().map(|plan| plan.cost.as_ref().expect("priced").total_nano_dollars.nano_dollars()).collect();
    assert!(times.is_sorted() && costs.is_sorted_by(|a, b| a > b), "{times:?} {costs:?}");
    assert_eq!((fleet.recommended, fleet.tried), (Some(fleet.front.len() - 1), 3));
    let in_time = choose(requests(), Goal::Deadline { seconds: times[0] }).expect("8B fits");
    assert_eq!(in_time.recommended, Some(0));
    let never = choose(requests(), Goal::Deadline { seconds: 1.0 }).expect("8B fits");
    assert!(never.recommended.is_none() && never.reason.contains("the fastest takes"));
    let paid = choose(requests(), Goal::Budget { nano_dollars: costs[0] }).expect("8B fits");
    assert_eq!(paid.recommended, Some(0));
    let poor = choose(requests(), Goal::Budget { nano_dollars: 1 }).expect("8B fits");
    assert!(poor.recommended.is_none() && poor.reason.contains("the cheapest costs"));
}

#[test]
fn serving_is_bound_by_reading_weights_and_keys_once_for_each_token() {
    let mut asked = request("llama-3.1-70b", "H100-SXM5-80GB", 4, Task::Inference);
    asked.workload.global_batch = 8;
    asked.layout = Some(Layout::parse("tp=4,dp=1").expect("a layout"));
    let plan = make(&asked).expect("140 GB fit on 4");
    let serving = plan.serving.expect("it is served");
    // 141 GB of weights and 8 x 4,096 x 327,680 bytes of keys and values on four times 3.35 TB/s, and 160 all-reduces.
    let read = (141.1e9 + 8.0 * 4_096.0 * 327_680.0) / (4.0 * 3.35e12 * 0.8) + 160.0 * 10e-6;
    assert!((serving.token_seconds / read - 1.0).abs() < 0.02, "{} is not {read}", serving.token_seconds);
    assert!((serving.tokens_per_second * serving.token_seconds - 8.0).abs() < 1e-9);
    assert!(
        make(&request("llama-3.1-8b", "H100-SXM5-80GB", 8, Task::FullFinetune)).expect("8B fits").serving.is_none()
    );
}
