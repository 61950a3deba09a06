//! Input of a simulation: a trace or a control plane's past, and a cluster.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use gangline_base::{AcceleratorKind, Bytes, Level, NodeName, PoolName};
use gangline_orchestration::{Configuration, Location, NodeCapacity, NodeSpec};
use gangline_simulator::{BadRows, Past, TraceFormat, Workload, read_trace};
use gangline_store::history;

use crate::configuration;
use crate::failure::Failure;

/// Maximum size of an unpacked trace, in bytes.
const TRACE_BYTES_MAX: u64 = 4 << 30;
/// Maximum number of nodes of a cluster.
const NODES_MAX: u32 = 100_000;
/// Maximum number of accelerators of a node.
const NODE_GPUS_MAX: u32 = 1_024;

/// What to simulate.
pub(crate) struct Input {
    pub(crate) workload: Workload,
    pub(crate) cluster: Cluster,
    /// Name of the workload.
    pub(crate) name: String,
}

/// Where a workload and its cluster come from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Source<'a> {
    /// The data folder of a control plane.
    pub(crate) replay: Option<&'a Path>,
    /// A trace.
    pub(crate) trace: Option<&'a Path>,
    /// The cluster; by default that of the control plane.
    pub(crate) cluster: Option<&'a str>,
    /// Of a control plane's past, only jobs and nodes of this kind of accelerator.
    pub(crate) accelerator: Option<&'a str>,
}

/// The cluster to simulate.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<NodeSpec>,
    pub(crate) sharing: Configuration,
    pub(crate) name: String,
}

pub(crate) fn read(source: Source<'_>, bad_rows: BadRows) -> Result<Input, Failure> {
    let given = source.cluster.map(cluster).transpose()?;
    let (workload, past_cluster, path) = match (source.replay, source.trace) {
        (Some(folder), _) => {
            let (workload, cluster) = past(folder, source.accelerator)?;
            (workload, Some(cluster), folder)
        }
        (None, Some(trace)) => (load(trace, bad_rows)?, None, trace),
        (None, None) => return Err(Failure::local("nothing to simulate", "give --trace FILE or --replay DATA_FOLDER")),
    };
    let missing = || Failure::local("no cluster to simulate on", "give --cluster NODESxGPUS, like 8x8");
    let cluster = given.or(past_cluster).ok_or_else(missing)?;
    Ok(Input { workload, cluster, name: path.display().to_string() })
}

pub(crate) fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::local(format!("failed to {error}"), "")
}

/// Returns a control plane's past, and its cluster.
fn past(folder: &Path, accelerator: Option<&str>) -> Result<(Workload, Cluster), Failure> {
    let name = folder.display().to_string();
    let mut past = Past::default();
    history::read(folder, &mut |at, entry| past.take_in(at, entry)).map_err(|error| {
        let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let words: Vec<String> = chain.map(ToString::to_string).collect();
        let hint = "--replay wants the data folder of a control plane, the --data of `gangline up`";
        Failure::local(format!("failed to read the journal in {name}: {}", words.join(": ")), hint)
    })?;
    let is_wanted = |kind: &AcceleratorKind| accelerator.is_none_or(|wanted| wanted == kind.0);
    let nodes = past.nodes().into_iter().filter(|node| is_wanted(&node.capacity.accelerator)).collect();
    let cluster = Cluster { nodes, sharing: past.sharing().clone(), name: "its own nodes".to_owned() };
    let workload = past.into_workload(is_wanted);
    if workload.jobs.is_empty() {
        return Err(Failure::local(
            format!("no job of the journal in {name} has run yet"),
            "there is nothing to replay",
        ));
    }
    Ok((workload, cluster))
}

fn load(path: &Path, bad_rows: BadRows) -> Result<Workload, Failure> {
    let name = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        Failure::local(
            format!("failed to read the trace {name}: {error}"),
            "a trace is a CSV or SWF file, plain or .gz",
        )
    };
    let file = File::open(path).map_err(unreadable)?;
    let is_packed = path.extension().is_some_and(|extension| extension == "gz");
    let mut text = String::new();
    let mut source: Box<dyn Read> =
        if is_packed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
    let bytes = source.by_ref().take(TRACE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if bytes as u64 > TRACE_BYTES_MAX {
        return Err(Failure::local(format!("the trace {name} has more than {TRACE_BYTES_MAX} bytes"), "split it"));
    }
    let plain = name.strip_suffix(".gz").unwrap_or(&name);
    let format = if plain.ends_with(".swf") { TraceFormat::Swf } else { TraceFormat::Csv };
    read_trace(&name, &text, format, bad_rows).map_err(|error| {
        Failure::local(
            format!("failed to read the trace: {error}"),
            "--skip-bad leaves malformed rows out and counts them",
        )
    })
}

/// Parses a cluster given on the command line.
fn cluster(text: &str) -> Result<Cluster, Failure> {
    if let Some(shape) = Shape::read(text) {
        let nodes = (0..shape.nodes).map(|number| shape.node(number)).collect::<Result<_, _>>()?;
        return Ok(Cluster { nodes, sharing: Configuration::shortest_waits(), name: text.to_owned() });
    }
    let hint = format!(
        "NODESxGPUS is like 8x8 or 64x8/rack=16/block=32, at most {NODES_MAX} nodes of at most {NODE_GPUS_MAX}; \
         a FILE is a control plane's configuration"
    );
    if let Err(error) = std::fs::metadata(text) {
        let message = format!("{text:?} is no cluster, and no file of that name can be read: {error}");
        return Err(Failure::local(message, hint));
    }
    let config = configuration::read(Path::new(text))?;
    if config.nodes.is_empty() {
        return Err(Failure::local(format!("the cluster {text} has no nodes"), "name them in [[node]] sections"));
    }
    let node = |node: gangline_specs::config::NodeConfig| NodeSpec {
        name: node.name,
        capacity: node.capacity,
        location: node.location,
        layout: node.layout,
    };
    let nodes = config.nodes.into_iter().map(node).collect();
    Ok(Cluster { nodes, sharing: config.sharing, name: text.to_owned() })
}

/// Equal nodes, in racks and blocks of these sizes, if given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    nodes: u32,
    gpus: u32,
    rack: Option<u32>,
    block: Option<u32>,
}

impl Shape {
    /// Parses `NODESxGPUS`, optionally followed by `/rack=N` and `/block=N`; a block is made of whole racks.
    fn read(text: &str) -> Option<Shape> {
        let mut parts = text.split('/');
        let (nodes, gpus) = parts.next()?.split_once('x')?;
        let mut shape = Shape { nodes: nodes.parse().ok()?, gpus: gpus.parse().ok()?, rack: None, block: None };
        for part in parts {
            let (level, nodes) = part.split_once('=')?;
            let slot = match level {
                "rack" => &mut shape.rack,
                "block" => &mut shape.block,
                _ => return None,
            };
            *slot = Some(nodes.parse().ok().filter(|nodes| *nodes > 0)?);
        }
        let is_nested = match (shape.rack, shape.block) {
            (Some(rack), Some(block)) => block % rack == 0,
            _ => true,
        };
        let is_within = (1..=NODES_MAX).contains(&shape.nodes) && (1..=NODE_GPUS_MAX).contains(&shape.gpus);
        (is_nested && is_within).then_some(shape)
    }

    fn node(self, number: u32) -> Result<NodeSpec, Failure> {
        let name = NodeName::new(&format!("node-{number:05}")).map_err(|error| failed(&error))?;
        let accelerator = AcceleratorKind("GPU".to_owned());
        let capacity =
            NodeCapacity { pool: PoolName::default(), accelerator, accelerators: self.gpus, cpus: 0, memory: Bytes(0) };
        let domain = |level: Level, size: Option<u32>| size.map(|size| (level, format!("{level}-{}", number / size)));
        let domains = [domain(Level::Rack, self.rack), domain(Level::Block, self.block)];
        let location = domains.into_iter().flatten().collect::<Location>();
        Ok(NodeSpec { name, capacity, location, layout: Default::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_may_name_racks_and_blocks_of_racks() {
        let shape = |nodes, gpus, rack, block| Some(Shape { nodes, gpus, rack, block });
        assert_eq!(Shape::read("8x8"), shape(8, 8, None, None));
        assert_eq!(Shape::read("64x4/rack=16/block=32"), shape(64, 4, Some(16), Some(32)));
        for wrong in ["8", "8x", "0x8", "8x0", "8x2000", "8x8/rack=0", "8x8/pod=2", "64x8/rack=16/block=24", "x"] {
            assert_eq!(Shape::read(wrong), None, "{wrong}");
        }
        let node = Shape::read("64x4/rack=16/block=32").expect("it is a shape").node(40).expect("it is a node");
        assert_eq!(node.location.to_string(), "rack rack-2 in block block-1");
    }

    #[test]
    fn what_is_no_cluster_says_what_one_is() {
        let Err(Failure::Local { message, hint, .. }) = cluster("8y8") else { panic!("it is no cluster") };
        assert!(message.starts_with("\"8y8\" is no cluster") && hint.contains("like 8x8"), "{message}; {hint}");
    }
}
