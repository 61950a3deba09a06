//! Lists of jobs, read page by page.

use gangline_api::{Job, JobList, JobState, Time};

use crate::client::{Client, path_segment};
use crate::failure::Failure;

/// The most jobs that one request reads.
const PAGE: u32 = 500;

/// The jobs that are asked for: those that meet every condition that is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Who submitted them.
    pub(crate) user: Option<String>,
    /// Their queue.
    pub(crate) queue: Option<String>,
    /// A part of their names.
    pub(crate) name: Option<String>,
    /// Their states; empty for any.
    pub(crate) states: Vec<JobState>,
    /// The time at or after which they were submitted.
    pub(crate) since: Option<Time>,
}

impl Filter {
    fn query(&self) -> String {
        let states: Vec<&str> = self.states.iter().map(|state| state.name()).collect();
        let states = (!states.is_empty()).then(|| states.join(","));
        let since = self.since.map(|since| since.to_string());
        let keys =
            [("user", &self.user), ("queue", &self.queue), ("name", &self.name), ("state", &states), ("since", &since)];
        let set = keys.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        set.map(|(key, value)| format!("&{key}={}", path_segment(value))).collect()
    }
}

/// Returns every live job: first those that hold devices, then those that wait, each newest first.
pub(crate) fn live(client: &Client, filter: &Filter) -> Result<JobList, Failure> {
    let mut list = read(client, ("live", filter), u32::MAX)?;
    list.jobs.sort_by_key(|job| job.state == JobState::Waiting);
    Ok(list)
}

/// Returns the ended jobs, newest first, `limit` at most. `next` says where older ones begin, if there are any.
pub(crate) fn ended(client: &Client, filter: &Filter, limit: u32) -> Result<JobList, Failure> {
    read(client, ("ended", filter), limit)
}

fn read(client: &Client, (standing, filter): (&str, &Filter), limit: u32) -> Result<JobList, Failure> {
    let filter = filter.query();
    let (mut all, mut before) = (JobList { jobs: Vec::new(), damaged: Vec::new(), next: None }, String::new());
    loop {
        let read = u32::try_from(all.jobs.len()).unwrap_or(u32::MAX);
        let count = PAGE.min(limit.saturating_sub(read));
        if count == 0 {
            return Ok(all);
        }
        let page: JobList = client.get(&format!("/jobs?standing={standing}&limit={count}{filter}{before}"))?;
        // A job that ends between two pages is in neither or in both, as it is with any list that changes.
        all.jobs.extend::<Vec<Job>>(page.jobs);
        all.damaged.extend(page.damaged);
        all.next = page.next;
        match &all.next {
            Some(next) => before = format!("&before={next}"),
            None => return Ok(all),
        }
    }
}
