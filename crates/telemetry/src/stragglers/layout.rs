//! How a gang is cut, as users state it: `dp=4,pp=4,tp=4`, or the flat YAML beside published traces.

use super::TraceError;
use super::read::{RANKS_MAX, Trace};

/// How a gang is cut into data, pipeline, tensor and data-sequence parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Data-parallel ranks.
    pub data: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Tensor-parallel ranks.
    pub tensor: u32,
    /// Data-sequence-parallel ranks.
    pub sequence: u32,
    /// Model chunks of a stage.
    pub chunks: u32,
    /// How many ranks the gang is said to have.
    stated_world: Option<u32>,
}

impl Layout {
    const ONE: Layout = Layout { data: 1, pipeline: 1, tensor: 1, sequence: 1, chunks: 1, stated_world: None };

    /// Reads `dp=4,pp=4,tp=4`; what isn't there is 1. There are dp, pp, tp, dsp and vpp.
    ///
    /// # Errors
    /// [`TraceError::Layout`] for another key, a number that isn't in 1..=[`RANKS_MAX`], and a key that is there twice.
    pub fn parse(text: &str) -> Result<Layout, TraceError> {
        Layout::of_pairs(text.split(',').map(|part| part.split_once('=').ok_or(part)), "")
    }

    /// Reads the flat YAML beside published traces: `dp_size: 4` and so on, a key to a line. Other keys, which name the
    /// run, are left alone.
    ///
    /// # Errors
    /// As for [`Layout::parse`]; also when world_size isn't the product of the others.
    pub fn parse_meta(text: &str) -> Result<Layout, TraceError> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '-']));
        let pairs = lines.map(|line| line.split_once(':').ok_or(line));
        let sizes = pairs.filter(|pair| pair.is_err() || pair.is_ok_and(|(key, _)| key.trim_end().ends_with("_size")));
        let layout = Layout::of_pairs(sizes, "_size")?;
        match layout.stated_world {
            Some(world) if u64::from(world) != layout.world() => {
                Err(TraceError::Layout(format!("world_size is {world}, but dp x pp x tp x dsp is {}", layout.world())))
            }
            _ => Ok(layout),
        }
    }

    fn of_pairs<'a>(
        pairs: impl Iterator<Item = Result<(&'a str, &'a str), &'a str>>,
        suffix: &str,
    ) -> Result<Layout, TraceError> {
        let mut layout = Layout::ONE;
        let mut seen = Vec::new();
        for pair in pairs {
            let (key, value) = pair.map_err(|part| TraceError::Layout(format!("{part:?} has no key and value")))?;
            let key = key.trim();
            let number = value.trim().parse::<u32>().ok().filter(|number| (1..=RANKS_MAX).contains(number));
            let number = number.ok_or_else(|| {
                TraceError::Layout(format!("{key} is {:?}, not a number from 1 to {RANKS_MAX}", value.trim()))
            })?;
            let slot = match key.strip_suffix(suffix).unwrap_or(key) {
                "dp" => &mut layout.data,
                "pp" => &mut layout.pipeline,
                "tp" => &mut layout.tensor,
                "dsp" => &mut layout.sequence,
                "vpp" => &mut layout.chunks,
                "world" if !suffix.is_empty() => layout.stated_world.insert(1),
                _ => return Err(TraceError::Layout(format!("no key {key:?}: there are dp, pp, tp, dsp and vpp"))),
            };
            if seen.contains(&key) {
                return Err(TraceError::Layout(format!("{key} is there twice")));
            }
            seen.push(key);
            *slot = number;
        }
        Ok(layout)
    }

    /// The layout that a trace's ranks and stages show; tensor and sequence parallelism don't show.
    pub fn of_trace(trace: &Trace) -> Layout {
        let most = |of: fn(&super::Operation) -> u32| trace.operations().iter().map(of).max().unwrap_or(0) + 1;
        Layout { data: most(|operation| operation.dp_rank), pipeline: most(|operation| operation.stage), ..Layout::ONE }
    }

    /// How many ranks there are.
    pub fn world(&self) -> u64 {
        [self.data, self.pipeline, self.tensor, self.sequence].map(u64::from).into_iter().fold(1, u64::saturating_mul)
    }

    /// Whether gradients are summed over ranks.
    pub(super) fn has_data_parallelism(&self) -> bool {
        self.data > 1 || self.sequence > 1
    }
}
