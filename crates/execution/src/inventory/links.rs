//! Reads the matrix that `nvidia-smi topo -m` prints: how a machine's GPUs are joined (its legend and
//! nvidia-smi(1), "topo", define the words). Text before the matrix and after its GPUs' rows, such as a
//! prompt, network cards' rows and legends, is skipped, and so are the terminal's colours.
//!
//! The layout has a tier for each kind of link, fastest first: NVLink within a NUMA node, NVLink, one PCIe
//! bridge, several, a host bridge, and a NUMA node. Two GPUs share a group of a tier if links at least as
//! fast connect them, directly or through other GPUs. On machines whose NVLinks don't connect all pairs, the
//! islands are those of the NUMA nodes. The number of NVLinks between two GPUs is ignored. Where a virtual
//! machine hides the bridges, cores tell NUMA nodes apart.

use std::fmt;

use gangline_base::{DeviceLayout, InvalidLayout};

/// Maximum size of the text; a machine of 64 GPUs and as many network cards prints 64 KiB.
const BYTES_MAX: usize = 1 << 20;
/// Maximum number of GPUs.
const GPUS_MAX: usize = 64;
/// Headings of the columns that follow those of devices.
const CPU_AFFINITY: &str = "CPU Affinity";
const NUMA_AFFINITY: &str = "NUMA Affinity";
const GPU_NUMA_ID: &str = "GPU NUMA ID";

/// A link between two devices of a machine, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// The same device.
    Same,
    /// This number of NVLinks.
    NvLink(u32),
    /// One PCIe bridge.
    Bridge,
    /// Several PCIe bridges, but no host bridge.
    Bridges,
    /// A host bridge.
    HostBridge,
    /// Several host bridges of one NUMA node.
    NumaNode,
    /// The interconnect between NUMA nodes.
    System,
}

impl Link {
    /// Parses a word of the matrix. SOC is the name of SYS until 2017.
    fn read(word: &str) -> Option<Link> {
        match word {
            "X" => Some(Link::Same),
            "PIX" => Some(Link::Bridge),
            "PXB" => Some(Link::Bridges),
            "PHB" => Some(Link::HostBridge),
            "NODE" => Some(Link::NumaNode),
            "SYS" | "SOC" => Some(Link::System),
            _ => word.strip_prefix("NV")?.parse().ok().filter(|count| *count > 0).map(Link::NvLink),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Same => f.write_str("X"),
            Link::NvLink(count) => write!(f, "NV{count}"),
            Link::Bridge => f.write_str("PIX"),
            Link::Bridges => f.write_str("PXB"),
            Link::HostBridge => f.write_str("PHB"),
            Link::NumaNode => f.write_str("NODE"),
            Link::System => f.write_str("SYS"),
        }
    }
}

/// Links of a GPU: its row of the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLinks {
    /// Links to every GPU, by index.
    pub gpus: Vec<Link>,
    /// Links to every network card, in the order of [`LinkMatrix::network_cards`].
    pub network_cards: Vec<Link>,
    /// The cores close to it, as printed, such as `0-47,96-143`.
    pub cpus: Option<String>,
    /// The NUMA nodes close to it, as printed.
    pub numa: Option<String>,
}

/// Links between all devices of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkMatrix {
    /// Its GPUs by index.
    pub gpus: Vec<GpuLinks>,
    /// Names of its network cards, such as `NIC0` or `mlx5_0`.
    pub network_cards: Vec<String>,
}

/// An error in a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct InvalidLinks {
    /// The line, from 1.
    pub line: usize,
    /// The column of the word, in bytes from 1.
    pub column: usize,
    /// What is wrong with it, and what to do.
    pub message: String,
}

/// A line's words and their columns.
struct Line<'a> {
    number: usize,
    words: Vec<(usize, &'a str)>,
}

impl<'a> Line<'a> {
    fn of(number: usize, text: &'a str) -> Self {
        let column = |word: &str| word.as_ptr().addr() - text.as_ptr().addr() + 1;
        Line { number, words: text.split_whitespace().map(|word| (column(word), word)).collect() }
    }

    /// Returns an error at the word with this index, or at the end of the line.
    fn invalid(&self, at: usize, message: impl Into<String>) -> InvalidLinks {
        let (last, word) = self.words.last().copied().unwrap_or((1, ""));
        let column = self.words.get(at).map_or(last + word.len(), |(column, _)| *column);
        InvalidLinks { line: self.number, column, message: message.into() }
    }
}

/// Parses the output of `nvidia-smi topo -m`.
///
/// # Errors
/// [`InvalidLinks`]: the first invalid word.
pub fn read_links(text: &str) -> Result<LinkMatrix, InvalidLinks> {
    let nowhere = |message: String| InvalidLinks { line: 1, column: 1, message };
    if text.len() > BYTES_MAX {
        return Err(nowhere(format!("the text is longer than {BYTES_MAX} bytes")));
    }
    let plain = without_colours(text);
    let mut lines = (1..).zip(plain.lines());
    let is_head = |text: &str| {
        let mut words = text.split_whitespace();
        words.next() == Some("GPU0") && words.next().is_none_or(|second| Link::read(second).is_none())
    };
    let head = lines.by_ref().find(|(_, text)| is_head(text));
    let (number, text) =
        head.ok_or_else(|| nowhere("no line begins with GPU0 GPU1 ...: give what nvidia-smi topo -m prints".into()))?;
    let columns = Columns::read(&Line::of(number, text), text)?;
    let mut gpus = Vec::with_capacity(columns.gpus);
    let mut end = number;
    for (number, text) in lines.take_while(|(_, text)| text.trim_start().starts_with("GPU")).take(columns.gpus) {
        let line = Line::of(number, text);
        let name = format!("GPU{}", gpus.len());
        if line.words.first().is_none_or(|(_, first)| *first != name) {
            return Err(line.invalid(0, format!("the row of {name} has to be here")));
        }
        gpus.push(columns.row(&line)?);
        end = number;
    }
    if gpus.len() < columns.gpus {
        let message = format!("{} GPU(s) are in the head, but {} have a row: give all lines", columns.gpus, gpus.len());
        return Err(InvalidLinks { line: end, column: 1, message });
    }
    let matrix = LinkMatrix { gpus, network_cards: columns.network_cards };
    matrix.check(number)?;
    Ok(matrix)
}

/// Removes the sequences that set a terminal's colours, ESC [ ... m. nvidia-smi underlines the head.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or(part, |(_, rest)| rest))
}

/// Columns as the head lists them.
struct Columns {
    gpus: usize,
    network_cards: Vec<String>,
    /// Which columns of affinities there are.
    has_cpus: bool,
    has_numa: bool,
    has_own_numa: bool,
}

impl Columns {
    fn read(line: &Line<'_>, text: &str) -> Result<Self, InvalidLinks> {
        let is_device = |(_, word): &&(usize, &str)| *word != "CPU";
        let devices: Vec<&str> = line.words.iter().take_while(is_device).map(|(_, word)| *word).collect();
        let gpus = devices.iter().take_while(|word| word.starts_with("GPU")).count();
        if let Some(at) = (0..gpus).find(|number| devices[*number] != format!("GPU{number}")) {
            return Err(line.invalid(at, format!("GPU{at} has to be here, not {}", devices[at])));
        }
        if gpus > GPUS_MAX {
            return Err(line.invalid(GPUS_MAX, format!("more than {GPUS_MAX} GPUs")));
        }
        Ok(Columns {
            gpus,
            network_cards: devices[gpus..].iter().map(|word| (*word).to_owned()).collect(),
            has_cpus: text.contains(CPU_AFFINITY),
            has_numa: text.contains(NUMA_AFFINITY),
            has_own_numa: text.contains(GPU_NUMA_ID),
        })
    }

    /// Parses a GPU's row. The cell of cores may be empty, so affinities are counted from the end.
    fn row(&self, line: &Line<'_>) -> Result<GpuLinks, InvalidLinks> {
        let devices = self.gpus + self.network_cards.len();
        let link = |at: usize| {
            let cell = line.words.get(at).map(|(_, word)| *word);
            let cell =
                cell.ok_or_else(|| line.invalid(at, format!("{devices} links belong here, one for each device")))?;
            let expected = "is no link: X, NV1, PIX, PXB, PHB, NODE or SYS belongs here";
            Link::read(cell).ok_or_else(|| line.invalid(at, format!("\"{cell}\" {expected}")))
        };
        let mut gpus = (1..=devices).map(link).collect::<Result<Vec<Link>, _>>()?;
        let network_cards = gpus.split_off(self.gpus);
        let rest = &line.words[devices + 1..];
        let affinities = [self.has_cpus, self.has_numa, self.has_own_numa].into_iter().filter(|has| *has).count();
        if rest.len() > affinities {
            return Err(
                line.invalid(devices + 1, format!("more cells than the {} that have a head", devices + affinities))
            );
        }
        let mut rest = rest.iter().rev().map(|(_, word)| *word);
        let mut next = |has: bool| if has { rest.next() } else { None };
        let _own_memory = next(self.has_own_numa);
        let (numa, cpus) = (next(self.has_numa), next(self.has_cpus));
        let known = |word: Option<&str>| word.filter(|word| *word != "N/A").map(str::to_owned);
        Ok(GpuLinks { gpus, network_cards, cpus: known(cpus), numa: known(numa) })
    }
}

impl LinkMatrix {
    /// Checks that each GPU's link to itself is `X` and that links are symmetric. `head` is the line of the
    /// head.
    fn check(&self, head: usize) -> Result<(), InvalidLinks> {
        for (one, row) in self.gpus.iter().enumerate() {
            let invalid = |message: String| Err(InvalidLinks { line: head + 1 + one, column: 1, message });
            if let Some(other) = (0..row.gpus.len()).find(|other| (one == *other) != (row.gpus[*other] == Link::Same)) {
                return invalid(format!(
                    "GPU{one} and GPU{other} are joined by {}: X is a GPU itself",
                    row.gpus[other]
                ));
            }
            if let Some(other) = (0..one).find(|other| self.gpus[*other].gpus[one] != row.gpus[*other]) {
                let (there, here) = (self.gpus[other].gpus[one], row.gpus[other]);
                return invalid(format!("GPU{one} reaches GPU{other} by {here}, but GPU{other} reaches it by {there}"));
            }
        }
        Ok(())
    }

    /// Reports whether two GPUs are close to the same NUMA node, if that is known for all GPUs.
    fn share_numa(&self, one: usize, other: usize) -> Option<bool> {
        let all = |of: fn(&GpuLinks) -> Option<&String>| {
            let known: Option<Vec<&String>> = self.gpus.iter().map(of).collect();
            known.map(|known| known[one] == known[other])
        };
        all(|gpu| gpu.numa.as_ref()).or_else(|| all(|gpu| gpu.cpus.as_ref()))
    }

    /// Returns the groups of its GPUs, from the fastest links to the slowest.
    ///
    /// # Errors
    /// [`InvalidLayout`]; never for a matrix from [`read_links`].
    pub fn layout(&self) -> Result<DeviceLayout, InvalidLayout> {
        let link = |one: usize, other: usize| self.gpus[one].gpus[other];
        let up_to = |slowest: Link| self.components(|one, other| link(one, other) <= slowest);
        let nvlink = Link::NvLink(u32::MAX);
        let is_near = |one, other| self.share_numa(one, other).unwrap_or(true);
        DeviceLayout::new(vec![
            self.components(|one, other| link(one, other) <= nvlink && is_near(one, other)),
            up_to(nvlink),
            up_to(Link::Bridge),
            up_to(Link::Bridges),
            up_to(Link::HostBridge),
            self.components(|one, other| {
                link(one, other) <= Link::NumaNode || self.share_numa(one, other) == Some(true)
            }),
        ])
    }

    /// Returns, for each GPU, the lowest GPU that it is connected with, directly or not.
    fn components(&self, are_joined: impl Fn(usize, usize) -> bool) -> Vec<u32> {
        let mut lowest: Vec<u32> = (0..).take(self.gpus.len()).collect();
        for one in 0..lowest.len() {
            for other in (0..one).filter(|other| are_joined(one, *other)) {
                let (kept, gone) = (lowest[one].min(lowest[other]), lowest[one].max(lowest[other]));
                lowest.iter_mut().filter(|group| **group == gone).for_each(|group| *group = kept);
            }
        }
        lowest
    }
}
