//! Lists of jobs, read page by page.

use gangline_api::{Job, JobList, JobState};

use crate::client::Client;
use crate::failure::Failure;

/// The most jobs that one request reads.
const PAGE: u32 = 500;

/// Returns every live job: first those that hold devices, then those that wait, each newest first.
pub(crate) fn live(client: &Client) -> Result<JobList, Failure> {
    let mut list = read(client, "live", u32::MAX)?;
    list.jobs.sort_by_key(|job| job.state == JobState::Waiting);
    Ok(list)
}

/// Returns the ended jobs, newest first, `limit` at most. `next` says where older ones begin, if there are any.
pub(crate) fn ended(client: &Client, limit: u32) -> Result<JobList, Failure> {
    read(client, "ended", limit)
}

fn read(client: &Client, standing: &str, limit: u32) -> Result<JobList, Failure> {
    let (mut all, mut before) = (JobList { jobs: Vec::new(), damaged: Vec::new(), next: None }, String::new());
    loop {
        let read = u32::try_from(all.jobs.len()).unwrap_or(u32::MAX);
        let count = PAGE.min(limit.saturating_sub(read));
        if count == 0 {
            return Ok(all);
        }
        let page: JobList = client.get(&format!("/jobs?standing={standing}&limit={count}{before}"))?;
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
