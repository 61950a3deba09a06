//! Which live jobs may share a checkpoint folder.

use std::sync::Arc;

use gangline_base::{JobId, Submitter, Timestamp};

use crate::fixture;
use crate::{Engine, Event, Limits, Refusal};

#[test]
fn a_folder_belongs_to_one_live_job_unless_the_next_one_shares_it() {
    let mut engine = Engine::new(Limits::default());
    let now = Timestamp::EPOCH;
    engine.apply(now, &Event::NodeJoined(fixture::node(1, 1))).expect("a node joins");
    let mut submit = |path: &str, is_shared: bool| {
        let mut spec = fixture::job(fixture::gang(1, 1));
        spec.checkpoint.path = Some(path.to_owned());
        spec.checkpoint.is_shared = is_shared;
        engine.apply(now, &Event::JobSubmitted(Arc::new(spec))).map(|_| ())
    };
    assert_eq!(submit("/c/a", false), Ok(()));
    let taken = Refusal::FolderTaken { folder: "/c/a".into(), holder: JobId(1) };
    assert_eq!(submit("/c/a/", false), Err(taken), "however it is written");
    assert_eq!(submit("/c/a/b", false), Ok(()));
    assert_eq!(submit("/c/a", true), Ok(()));
    assert_eq!((submit("/c/{job}", false), submit("/c/{job}", false)), (Ok(()), Ok(())));
    engine.check_invariants().expect("the index holds");
    for job in (1..=5).map(JobId) {
        engine.apply(now, &Event::CancelRequested { job, by: Submitter("ada".to_owned()) }).expect("it is live");
    }
    assert_eq!(engine.folders.count(), 1, "job-1 holds its device until it has stopped");
}
