//! Options that change when or where a job may run, or in what, and that can't be kept here. A job that ignored one could
//! run where its owner forbade it, so each is refused, with what to do instead.

/// Returns why an option is refused; none if it may be left out.
pub(super) fn why(name: &str) -> Option<&'static str> {
    Some(match name {
        "hold" => "a script can't hold itself: take it out, and hold the job once it is submitted (gangline hold)",
        "begin" => "a job starts as soon as it can: take it out, and submit it then (gangline schedules, for one)",
        "deadline" => "no job is taken back because of a date: take it out, and limit its time (--time)",
        "exclude" | "nodelist" | "nodefile" => {
            "jobs don't name nodes: take it out, and name a pool (--set resources.pool=NAME), or drain what is to be avoided"
        }
        "constraint" | "prefer" | "cluster-constraint" => {
            "nodes have no features here: take it out, and name the kind of GPU (--gpus-per-node=h100:8) or a pool"
        }
        "licenses" => "nobody counts licences here: take it out if the job runs without one",
        "reservation" => {
            "reservations are for queues here (docs/reference/configuration.md): take it out, and name the queue"
        }
        "clusters" => "this control plane has one cluster: take it out",
        "container-name" | "container-save" | "container-workdir" | "container-entrypoint" => {
            "a container lasts as long as its rank, and starts in the job's folder: take it out"
        }
        _ => return None,
    })
}
