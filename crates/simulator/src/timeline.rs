//! A timeline of a simulation: nodes downward, time across, and which job held what.
//!
//! The picture's size is bounded: time is divided into [`COLUMNS`] columns and nodes into at most
//! [`ROWS_MAX`] rows of neighbours; a cell shows the job that held most of it, paler the less of the cell was
//! held, and neighbouring cells that look alike form one rectangle. So there are at most `COLUMNS` x
//! `ROWS_MAX` rectangles, and far fewer where jobs are long. Nodes that are down are grey. Job colours
//! advance on the colour circle by the golden angle, so that jobs with neighbouring numbers differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gangline_base::{NodeId, Timestamp};

use super::floor::Shares;
use super::workload::JobIndex;

/// The number of columns.
const COLUMNS: usize = 200;
/// The most rows.
const ROWS_MAX: usize = 80;
/// The most runs recorded; later ones are left out, and the picture says how many.
const RUNS_MAX: usize = 2_000_000;
/// Sizes in units of the picture.
const CELL_WIDTH: usize = 5;
const CELL_HEIGHT: usize = 9;
const LEFT: usize = 80;
const TOP: usize = 64;

/// The history that a simulation records for the timeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    runs: Vec<(JobIndex, Timestamp, Timestamp, Shares)>,
    downs: Vec<(NodeId, Timestamp, Timestamp)>,
    down_since: BTreeMap<NodeId, Timestamp>,
    left_out: u64,
}

impl Recorder {
    /// Records that a job held these shares from `from` until `to`.
    pub(crate) fn ran(&mut self, job: JobIndex, from: Timestamp, to: Timestamp, shares: &Shares) {
        if self.runs.len() >= RUNS_MAX {
            self.left_out += 1;
        } else {
            self.runs.push((job, from, to, shares.clone()));
        }
    }

    /// Records that a node went down.
    pub(crate) fn went_down(&mut self, node: NodeId, at: Timestamp) {
        self.down_since.insert(node, at);
    }

    /// Records that a node is back.
    pub(crate) fn came_back(&mut self, node: NodeId, at: Timestamp) {
        self.downs.extend(self.down_since.remove(&node).map(|from| (node, from, at)));
    }

    /// Draws the timeline as an SVG document.
    pub(crate) fn draw(mut self, title: &str, capacity: &[u32]) -> String {
        let first = self.runs.iter().map(|(_, from, ..)| *from).min().unwrap_or(Timestamp::EPOCH);
        let last = self.runs.iter().map(|(_, _, to, _)| *to).max().unwrap_or(first);
        self.downs.extend(std::mem::take(&mut self.down_since).into_iter().map(|(node, from)| (node, from, last)));
        let mut grid = Grid::new(capacity, first, last);
        for (job, from, to, shares) in &self.runs {
            for (node, gpus) in shares {
                grid.add(*node, (*from, *to), f64::from(*gpus), Some(*job));
            }
        }
        for (node, from, to) in &self.downs {
            let gpus = f64::from(capacity.get(node.0 as usize).copied().unwrap_or(0));
            grid.add(*node, (*from, *to), gpus, None);
        }
        grid.draw(title, self.left_out)
    }
}

/// The appearance of a cell: its job (none for down), and how many quarters of it were held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    job: Option<JobIndex>,
    quarters: u8,
}

/// Accelerator-seconds by cell and job.
struct Grid {
    first: Timestamp,
    span: f64,
    nodes: usize,
    nodes_per_row: usize,
    /// The accelerators of each row.
    capacity: Vec<f64>,
    cells: Vec<Vec<BTreeMap<Option<JobIndex>, f64>>>,
}

impl Grid {
    fn new(capacity: &[u32], first: Timestamp, last: Timestamp) -> Self {
        let nodes_per_row = capacity.len().div_ceil(ROWS_MAX).max(1);
        let rows = capacity.chunks(nodes_per_row).map(|row| row.iter().copied().map(f64::from).sum());
        let capacity_of_rows: Vec<f64> = rows.collect();
        Grid {
            first,
            span: last.since(first).as_secs_f64().max(1e-9),
            nodes: capacity.len(),
            nodes_per_row,
            cells: vec![vec![BTreeMap::new(); COLUMNS]; capacity_of_rows.len()],
            capacity: capacity_of_rows,
        }
    }

    /// Distributes what was held over the cells it touches.
    fn add(&mut self, node: NodeId, (from, to): (Timestamp, Timestamp), gpus: f64, job: Option<JobIndex>) {
        let width = self.span / COLUMNS as f64;
        let (from, to) = (from.since(self.first).as_secs_f64(), to.since(self.first).as_secs_f64());
        let Some(row) = self.cells.get_mut(node.0 as usize / self.nodes_per_row) else { return };
        let mut end = 0.0;
        for cell in row {
            let start = end;
            end += width;
            let held = to.min(end) - from.max(start);
            if held > 0.0 {
                *cell.entry(job).or_insert(0.0) += held * gpus;
            }
        }
    }

    fn look(&self, row: usize, column: usize) -> Option<Look> {
        let cell = &self.cells[row][column];
        let (job, _) = cell.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let most = self.capacity[row] * self.span / COLUMNS as f64;
        let share = cell.values().sum::<f64>() / most;
        let quarters = 1 + (1..4).filter(|quarter| share > f64::from(*quarter) / 4.0).count();
        Some(Look { job: *job, quarters: u8::try_from(quarters).expect("there are four quarters") })
    }

    fn draw(&self, title: &str, left_out: u64) -> String {
        let (width, height) = (LEFT + COLUMNS * CELL_WIDTH + 20, TOP + self.cells.len() * CELL_HEIGHT + 40);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        self.draw_legend(&mut text, title, left_out);
        for row in 0..self.cells.len() {
            self.draw_row(&mut text, row);
        }
        self.draw_axis(&mut text);
        text += "</svg>\n";
        text
    }

    fn draw_legend(&self, text: &mut String, title: &str, left_out: u64) {
        put_label(text, LEFT, 16, title);
        let rows = match self.nodes_per_row {
            1 => format!("{} nodes, a row each", self.nodes),
            several => format!("{} nodes, {several} to a row", self.nodes),
        };
        let omitted = if left_out > 0 { format!("; {left_out} runs are left out") } else { String::new() };
        put_label(text, LEFT, 32, &format!("{rows}; a column is {}{omitted}", span(self.span / COLUMNS as f64)));
        let first = Some(JobIndex(0));
        let looks = [(None, 4, "down"), (first, 4, "a job, all of it"), (first, 1, "a quarter or less")];
        let mut x = LEFT;
        for (job, quarters, words) in looks {
            let style = fill(Look { job, quarters });
            put(text, format_args!("<rect x=\"{x}\" y=\"41\" width=\"10\" height=\"10\" {style}/>\n"));
            put_label(text, x + 14, 50, words);
            x += 24 + 7 * words.len();
        }
        put_label(text, x, 50, "white: free. A colour is a job, the one that held most of the cell.");
    }

    /// Draws a row, with neighbouring cells that look alike as one rectangle.
    fn draw_row(&self, text: &mut String, row: usize) {
        let y = TOP + row * CELL_HEIGHT;
        put(text, format_args!("<text x=\"4\" y=\"{}\">node {}</text>\n", y + CELL_HEIGHT, row * self.nodes_per_row));
        let mut from = 0;
        while from < COLUMNS {
            let look = self.look(row, from);
            let to = (from..COLUMNS).find(|column| self.look(row, *column) != look).unwrap_or(COLUMNS);
            if let Some(look) = look {
                let (x, width) = (LEFT + from * CELL_WIDTH, (to - from) * CELL_WIDTH);
                let height = CELL_HEIGHT - 1;
                let style = fill(look);
                put(text, format_args!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {style}/>\n"));
            }
            from = to;
        }
    }

    fn draw_axis(&self, text: &mut String) {
        let y = TOP + self.cells.len() * CELL_HEIGHT + 14;
        for tenth in 0..=10_usize {
            let x = LEFT + tenth * COLUMNS / 10 * CELL_WIDTH;
            let at = span(self.span * tenth as f64 / 10.0);
            put(text, format_args!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{at}</text>\n"));
        }
    }
}

/// Appends to a text.
fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a String takes whatever is written");
}

fn put_label(text: &mut String, x: usize, y: usize, words: &str) {
    put(text, format_args!("<text x=\"{x}\" y=\"{y}\">{}</text>\n", escaped(words)));
}

fn fill(look: Look) -> String {
    let opacity = f64::from(look.quarters) / 4.0;
    match look.job {
        None => format!("fill=\"#777\" fill-opacity=\"{opacity}\""),
        Some(JobIndex(job)) => {
            // The golden angle is 137.508 degrees; two lightnesses distinguish more jobs.
            let hue = (u64::from(job) * 137_508 / 1_000) % 360;
            let lightness = if job % 2 == 0 { 45 } else { 60 };
            format!("fill=\"hsl({hue},65%,{lightness}%)\" fill-opacity=\"{opacity}\"")
        }
    }
}

/// Formats seconds in a suitable unit.
fn span(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3_600.0, "h"), (60.0, "m")];
    let found = units.into_iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = found.unwrap_or((1.0, "s"));
    format!("{:.1} {name}", seconds / unit)
}

/// Escapes text for an SVG document.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn two_nodes_show_their_jobs_and_the_one_that_was_down() {
        let mut recorder = Recorder::default();
        recorder.ran(JobIndex(0), at(0), at(100), &vec![(NodeId(0), 8), (NodeId(1), 8)]);
        recorder.ran(JobIndex(1), at(100), at(200), &vec![(NodeId(0), 2)]);
        recorder.went_down(NodeId(1), at(100));
        let picture = recorder.draw("a <b>", &[8, 8]);
        let rectangles: Vec<&str> =
            picture.lines().filter(|line| line.starts_with("<rect x=\"80\" y=\"64\"")).collect();
        assert_eq!(rectangles.len(), 1, "{picture}");
        assert!(rectangles[0].contains("width=\"500\" height=\"8\" fill=\"hsl(0,65%,45%)\" fill-opacity=\"1\""));
        assert!(picture.contains(
            "<rect x=\"580\" y=\"64\" width=\"500\" height=\"8\" fill=\"hsl(137,65%,60%)\" fill-opacity=\"0.25\"/>"
        ));
        assert!(
            picture.contains("<rect x=\"580\" y=\"73\" width=\"500\" height=\"8\" fill=\"#777\" fill-opacity=\"1\"/>")
        );
        assert!(picture.contains("a &lt;b&gt;") && picture.contains("2 nodes, a row each; a column is 1.0 s"));
    }

    #[test]
    fn a_large_simulation_makes_no_larger_picture() {
        let mut recorder = Recorder::default();
        for job in 0..20_000_u32 {
            let start = u64::from(job) * 7;
            recorder.ran(JobIndex(job), at(start), at(start + 900), &vec![(NodeId(job % 1_000), 8)]);
        }
        let picture = recorder.draw("many", &[8; 1_000]);
        let rectangles = picture.lines().filter(|line| line.starts_with("<rect")).count();
        assert!(rectangles > 1_000 && rectangles <= COLUMNS * ROWS_MAX + 4, "{rectangles}");
        assert!(picture.contains("1000 nodes, 13 to a row"));
    }
}
