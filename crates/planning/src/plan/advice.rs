//! What a reader of a plan should know or change, and what was assumed: sentences.

use super::document::Plan;
use super::request::Request;
use crate::layout::{AttentionKernel, Layout, Offload, Recompute};
use crate::reliability::{FailureRate, checkpoint::OVERHEAD_MAX};
use crate::search::Candidate;
use crate::units::{GIBIBYTE, real};
use crate::workload::{Task, Workload};

/// A slower network that costs no more than this part of a step does.
const SLOWDOWN_ACCEPTED: f64 = 1.03;
/// A slower network that costs this part of a step is no good.
const SLOWDOWN_BAD: f64 = 1.25;
/// A part of the memory below which accelerators are too large.
const MEMORY_LOW: f64 = 0.4;
/// A part of the memory above which little may come on top.
const MEMORY_HIGH: f64 = 0.92;
/// Bytes of a parameter in the host's memory: fp32 master copy, two moments and the gradient.
const HOST_BYTES: f64 = 16.0;
/// Gigabytes a second that any storage writes.
const BANDWIDTH_SMALL: f64 = 0.05;
/// A part of a step from which a component is worth a sentence.
const COMPONENT_LARGE: f64 = 0.15;

/// What to know or change, the weightiest first.
pub(super) fn advice(plan: &Plan, request: &Request, chosen: &Candidate) -> Vec<String> {
    let mut told = Vec::new();
    told.extend(fit(plan, chosen));
    told.extend(context(request));
    told.extend(time(plan, &chosen.layout));
    told.extend(network(plan));
    told.extend(storage(plan));
    told.extend(failures(plan, request));
    told.extend(cost(plan));
    told
}

fn fit(plan: &Plan, chosen: &Candidate) -> Option<String> {
    let fullest = chosen.memory.fullest().occupied();
    let part = fullest / chosen.memory.capacity;
    if !plan.fits {
        let (needed, capacity) = (fullest.gib(), chosen.memory.capacity.gib());
        return Some(format!(
            "this layout doesn't fit: {needed:.1} GiB of {capacity:.1}; {}",
            what_needs_less(&Task::FullFinetune)
        ));
    }
    if part > MEMORY_HIGH {
        return Some(format!(
            "{:.0} % of the memory is taken: a longer sequence or a larger micro-batch won't fit",
            part * 100.0
        ));
    }
    let accelerator = &plan.cluster.accelerator;
    (part < MEMORY_LOW).then(|| {
        format!("only {:.0} % of {accelerator}'s memory is used: a smaller or cheaper accelerator, or fewer of them, would hold this", part * 100.0)
    })
}

/// Says that a sequence is longer than the model was made for.
fn context(request: &Request) -> Option<String> {
    let Workload { model, sequence, .. } = &request.workload;
    let context = model.context.filter(|context| sequence > context)?;
    let name = &model.name;
    let way = if model.embedding.positions > 0 {
        "its positions are a learned table, which has to grow and be trained"
    } else {
        "its positions have to be stretched (rope_scaling), and trained at that length"
    };
    Some(format!("a sequence of {sequence} tokens is longer than {name}'s context of {context}: {way}"))
}

fn time(plan: &Plan, layout: &Layout) -> Vec<String> {
    let part = |name: &str| plan.step.components_seconds.get(name).map_or(0.0, |seconds| seconds / plan.step.seconds);
    let mut told = Vec::new();
    if part("pipeline bubble") > COMPONENT_LARGE {
        told.push(format!(
            "{:.0} % of a step is the pipeline's bubble: a larger global batch, or fewer stages, shortens it",
            part("pipeline bubble") * 100.0
        ));
    }
    if part("data-parallel communication") > COMPONENT_LARGE {
        told.push(format!(
            "{:.0} % of a step waits for gradients and parameters: a larger batch for each accelerator hides it",
            part("data-parallel communication") * 100.0
        ));
    }
    if part("kernel launches") > COMPONENT_LARGE {
        told.push(
            "kernels are launched slower than they run: compile the model, or give each accelerator more at once"
                .to_owned(),
        );
    }
    match layout.recompute {
        Recompute::Full => told.push("layers are computed again to save memory, for about a third more work: more accelerators or memory would do without".to_owned()),
        Recompute::None | Recompute::Selective => {}
    }
    if layout.offload == Offload::Optimizer {
        told.push(offloaded(plan));
    }
    told
}

/// AdamW keeps 12 bytes a parameter, and its gradients 4, where the state lies.
fn offloaded(plan: &Plan) -> String {
    let nodes = plan.cluster.accelerators.div_ceil(plan.cluster.per_node.max(1));
    let gib = real(plan.model.trained_parameters) * HOST_BYTES / f64::from(nodes) / GIBIBYTE;
    format!(
        "the optimizer's state lies in the host's memory, because nothing fits otherwise: up to {gib:.0} GiB on each node, and each step waits for it"
    )
}

fn network(plan: &Plan) -> Option<String> {
    let slowest_good =
        plan.network.alternatives.iter().rfind(|other| other.slowdown.is_some_and(|slow| slow <= SLOWDOWN_ACCEPTED));
    let fabric = &plan.cluster.fabric;
    if let Some(other) = slowest_good {
        let slow = other.slowdown.unwrap_or(1.0);
        return Some(format!(
            "{fabric} isn't worth a premium here: on {} a step takes {:.0} % longer",
            other.fabric,
            (slow - 1.0).max(0.0) * 100.0
        ));
    }
    let worst = plan.network.alternatives.last()?;
    Some(match worst.slowdown {
        None => format!("{fabric} is needed: on {} nothing fits", worst.fabric),
        Some(slow) if slow >= SLOWDOWN_BAD => {
            format!(
                "{fabric} pays: on {} a step takes {:.0} % longer, and so costs that much more",
                worst.fabric,
                (slow - 1.0) * 100.0
            )
        }
        Some(slow) => format!(
            "{fabric} is worth up to {:.0} % of the price: that much longer a step takes on {}",
            (slow - 1.0) * 100.0,
            worst.fabric
        ),
    })
}

fn storage(plan: &Plan) -> Option<String> {
    let checkpoint = &plan.checkpoint;
    let wanted = checkpoint.bandwidth_wanted_bytes_per_second / 1e9;
    if wanted < BANDWIDTH_SMALL {
        return None;
    }
    let written = checkpoint.bytes / checkpoint.written_seconds / 1e9;
    Some(if written >= wanted {
        format!(
            "{} writes {written:.1} GB/s, enough to keep checkpoints under {:.0} % even if training waited for them ({wanted:.2} GB/s)",
            checkpoint.storage,
            OVERHEAD_MAX * 100.0
        )
    } else {
        format!(
            "{} writes {written:.1} GB/s: training that waited for checkpoints would need {wanted:.2} GB/s to lose less than {:.0} %, so save in the background",
            checkpoint.storage,
            OVERHEAD_MAX * 100.0
        )
    })
}

fn failures(plan: &Plan, request: &Request) -> Option<String> {
    let hours = plan.reliability.mean_time_seconds / 3_600.0;
    let expected = plan.run.expected_seconds / plan.reliability.mean_time_seconds;
    let warning = if FailureRate::is_optimistic(request.cluster.accelerators) {
        "; jobs of this size have been interrupted more often than the number of nodes explains, mostly by software"
    } else {
        ""
    };
    (expected >= 0.5).then(|| format!("expect an interruption every {hours:.1} h, {expected:.0} in this run{warning}"))
}

fn cost(plan: &Plan) -> Option<String> {
    let cost = plan.cost.as_ref().filter(|cost| cost.is_stale)?;
    let day = cost.as_of.as_deref()?;
    Some(format!("the price is of {day}, more than 90 days ago: give today's with --price"))
}

/// What makes a run smaller.
pub(super) fn what_needs_less(task: &Task) -> String {
    match task {
        Task::Qlora { .. } => "take more accelerators or larger ones, or a shorter sequence",
        Task::Lora(_) => "take more accelerators or larger ones, a shorter sequence, or qlora",
        Task::Inference => "take more accelerators or larger ones, or fewer sequences at once",
        _ => "take more accelerators or larger ones, a shorter sequence, an 8-bit optimizer, lora, or qlora",
    }
    .to_owned()
}

/// What was taken for granted.
pub(super) fn assumptions(request: &Request, chosen: &Candidate) -> Vec<String> {
    let Workload { task, .. } = &request.workload;
    let mut told = vec![
        "all nodes are alike and healthy; sequences are packed full; the data arrives in time".to_owned(),
        match chosen.layout.kernel {
            AttentionKernel::Unfused => "attention writes its scores to memory".to_owned(),
            AttentionKernel::Flash | AttentionKernel::FlashFirst => "attention runs in fused kernels".to_owned(),
        },
        format!(
            "failures: {} in 1,000 node-days, {}",
            request.failures.per_thousand_node_days, request.failures.source
        ),
        format!("{:.0} s from a failure to the first step, and the checkpoint's reading", request.recovery.get()),
    ];
    if matches!(task, Task::Pretrain | Task::ContinualPretrain | Task::FullFinetune)
        && request.workload.model.has_experts()
    {
        told.push("tokens are spread evenly over the experts".to_owned());
    }
    if let Some(price) = &request.price {
        let day = price.as_of.as_ref().map(|day| format!(" of {day}")).unwrap_or_default();
        told.push(format!("price: {}{day}; storage, network and people are not in it", price.source));
    }
    told
}
