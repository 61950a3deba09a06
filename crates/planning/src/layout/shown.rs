//! A layout as the text that [`Layout::parse`] reads back: degrees above 1, and what differs from what such a text leaves out.

use std::fmt;

use super::text::{GRADIENTS, KERNELS, LOSSES, OFFLOAD, RECOMPUTE, STACKS, STEPS};
use super::{Layout, Sharding};
use crate::names::word_for;

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Layout::default();
        write!(f, "tp={},pp={},dp={}", self.tensor, self.pipeline, self.data)?;
        let others =
            [("vp", self.virtual_stages), ("cp", self.context), ("ep", self.expert), ("etp", self.expert_tensor)];
        for (key, degree) in others.into_iter().filter(|(_, degree)| *degree > 1) {
            write!(f, ",{key}={degree}")?;
        }
        write!(f, ",mbs={}", self.micro_batch)?;
        if self.is_sequence_parallel != (self.tensor > 1) {
            f.write_str(if self.is_sequence_parallel { ",sp=on" } else { ",sp=off" })?;
        }
        let switches = [
            ("tp_overlap", self.is_tensor_overlapped),
            ("compile", self.is_compiled),
            ("fused_experts", self.has_fused_experts),
        ];
        for (key, _) in switches.into_iter().filter(|(_, is_on)| *is_on) {
            write!(f, ",{key}=on")?;
        }
        unless_usual(f, ("recompute", RECOMPUTE), self.recompute, usual.recompute)?;
        unless_usual(f, ("offload", OFFLOAD), self.offload, usual.offload)?;
        write!(f, ",stack={}", word_for(&self.stack, STACKS))?;
        match self.sharding {
            Sharding::None => f.write_str(",sharding=none")?,
            Sharding::Optimizer { ranks } => write!(f, ",sharding=optimizer:{ranks}")?,
            Sharding::Gradients => f.write_str(",sharding=gradients")?,
            Sharding::Parameters { reshards: true } => f.write_str(",sharding=parameters")?,
            Sharding::Parameters { reshards: false } => f.write_str(",sharding=parameters:kept")?,
        }
        unless_usual(f, ("attention", KERNELS), self.kernel, usual.kernel)?;
        unless_usual(f, ("loss", LOSSES), self.loss, usual.loss)?;
        unless_usual(f, ("step", STEPS), self.step, usual.step)?;
        unless_usual(f, ("gradients", GRADIENTS), self.gradients, usual.gradients)
    }
}

/// A key and its word, if it isn't what is meant without it.
fn unless_usual<T: PartialEq>(
    f: &mut fmt::Formatter<'_>,
    (key, words): (&str, &[(&'static str, T)]),
    value: T,
    usual: T,
) -> fmt::Result {
    if value == usual { Ok(()) } else { write!(f, ",{key}={}", word_for(&value, words)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::AttentionKernel;

    #[test]
    fn what_is_shown_is_read_back_as_the_same() {
        let texts = [
            "",
            "tp=8,pp=2,dp=8,mbs=1,vp=5",
            "dp=16,mbs=2,zero=3,recompute=full,loss=chunked",
            "dp=8,sharding=parameters:kept,offload=activations,compile=on",
            "tp=8,dp=1,tp_overlap=on,gradients=16bit,fused_experts=on",
            "tp=4,sp=off,dp=2,cp=2,ep=2,sharding=optimizer:2,stack=deepspeed,attention=unfused,loss=streamed",
            "dp=4,sharding=gradients,stack=fsdp,recompute=selective,offload=optimizer,loss=fused",
        ];
        for text in texts {
            let layout = Layout::parse(text).unwrap();
            assert_eq!(Layout::parse(&layout.to_string()), Ok(layout), "{layout}");
        }
        let first = Layout { kernel: AttentionKernel::FlashFirst, ..Layout::default() };
        assert_eq!(Layout::parse(&first.to_string()), Ok(first));
    }
}
