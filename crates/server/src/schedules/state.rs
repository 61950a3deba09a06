//! The schedules as values: what is due, and what came of it. Pure but for the text of the file.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_api as api;
use gangline_base::{JobId, Submitter, Timestamp};
use gangline_specs::cron::Cron;
use serde::{Deserialize, Serialize};

/// The most schedules (A-10).
pub(super) const SCHEDULES_MAX: usize = 256;
/// A time that has passed by more than this is left out: the control plane was down.
const LATE_MAX: Duration = Duration::from_secs(10 * 60);
const VERSION: u32 = 1;
const ID_PREFIX: &str = "schedule-";

/// All schedules.
#[derive(Debug, Default)]
pub(super) struct State {
    last: u64,
    schedules: BTreeMap<u64, Schedule>,
}

/// What a user asks for.
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) cron: Cron,
    pub(super) submitter: Submitter,
    pub(super) request: api::SubmitRequest,
}

#[derive(Debug)]
struct Schedule {
    name: String,
    cron: Cron,
    submitter: Submitter,
    created_at: Timestamp,
    request: api::SubmitRequest,
    /// None while it is paused.
    next: Option<Timestamp>,
    last: Option<Run>,
    /// The jobs that it submitted last.
    jobs: Vec<JobId>,
    left_out: u64,
}

/// What came of one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    due: Timestamp,
    outcome: Outcome,
}

/// What came of one time, as it is stored too (version 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It is being submitted; after a restart nobody knows whether it was.
    Begun,
    /// It was submitted as this job or sweep.
    Submitted(String),
    /// It was left out on purpose.
    LeftOut(String),
    /// It could not be submitted.
    Failed(String),
}

/// A schedule's time that has come.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) schedule: u64,
    pub(super) submitter: Submitter,
    pub(super) request: api::SubmitRequest,
    /// The jobs of the time before.
    pub(super) before: Vec<JobId>,
}

/// A change of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Pause,
    Resume,
    Remove,
}

pub(super) fn id(number: u64) -> String {
    format!("{ID_PREFIX}{number}")
}

/// Parses `schedule-3`, or `3`.
pub(super) fn parse_id(text: &str) -> Option<u64> {
    text.strip_prefix(ID_PREFIX).unwrap_or(text).parse().ok()
}

impl State {
    /// Adds a schedule; none if there are too many, or none of its times ever comes.
    pub(super) fn add(&mut self, wish: Wish, now: Timestamp) -> Option<api::Schedule> {
        let next = wish.cron.next_after(now)?;
        if self.schedules.len() >= SCHEDULES_MAX {
            return None;
        }
        self.last += 1;
        let Wish { name, cron, submitter, request } = wish;
        let schedule = Schedule {
            name,
            cron,
            submitter,
            created_at: now,
            request,
            next: Some(next),
            last: None,
            jobs: Vec::new(),
            left_out: 0,
        };
        let shown = schedule.to_api(self.last);
        self.schedules.insert(self.last, schedule);
        Some(shown)
    }

    /// Changes a schedule; none if there is no such one. One that was resumed goes on with its next time.
    pub(super) fn change(&mut self, number: u64, change: Change, now: Timestamp) -> Option<api::Schedule> {
        let schedule = self.schedules.get_mut(&number)?;
        match change {
            Change::Pause => schedule.next = None,
            Change::Resume if schedule.next.is_none() => schedule.next = schedule.cron.next_after(now),
            Change::Resume => {}
            Change::Remove => {
                schedule.next = None;
                return self.schedules.remove(&number).map(|schedule| schedule.to_api(number));
            }
        }
        Some(schedule.to_api(number))
    }

    /// Returns the schedules whose time has come, and notes that they are being submitted. Each comes once, however
    /// many of its times have passed.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Vec<Due> {
        let mut taken = Vec::new();
        for (number, schedule) in &mut self.schedules {
            let Some(due) = schedule.next.filter(|next| *next <= now) else { continue };
            schedule.next = schedule.cron.next_after(now);
            if now.since(due) > LATE_MAX {
                schedule.left_out += 1;
                schedule.last = Some(Run { due, outcome: Outcome::LeftOut("the control plane was down".to_owned()) });
                continue;
            }
            schedule.last = Some(Run { due, outcome: Outcome::Begun });
            taken.push(Due {
                schedule: *number,
                submitter: schedule.submitter.clone(),
                request: schedule.request.clone(),
                before: schedule.jobs.clone(),
            });
        }
        taken
    }

    /// Notes what came of a time that was taken, and which jobs were submitted. The schedule may be gone by now.
    pub(super) fn finish(&mut self, number: u64, outcome: Outcome, jobs: Vec<JobId>) {
        let Some(schedule) = self.schedules.get_mut(&number) else { return };
        match outcome {
            Outcome::Submitted(_) => schedule.jobs = jobs,
            Outcome::LeftOut(_) => schedule.left_out += 1,
            Outcome::Begun | Outcome::Failed(_) => {}
        }
        if let Some(run) = &mut schedule.last {
            run.outcome = outcome;
        }
    }

    /// Returns the next time of any schedule.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.schedules.values().filter_map(|schedule| schedule.next).min()
    }

    /// Returns the text of the file.
    pub(super) fn save(&self) -> String {
        let schedules = self.schedules.iter().map(|(number, schedule)| schedule.saved(*number)).collect();
        let saved = SavedV1 { v: VERSION, last: self.last, schedules };
        serde_json::to_string(&saved).expect("texts and numbers are always JSON")
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn restore(text: &str) -> Result<State, String> {
        let saved: SavedV1 = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if saved.v != VERSION {
            return Err(format!("version {} isn't known here", saved.v));
        }
        let schedules = saved.schedules.into_iter().map(|saved| Ok((saved.id, Schedule::try_from(saved)?)));
        Ok(State { last: saved.last, schedules: schedules.collect::<Result<_, String>>()? })
    }

    /// Returns all schedules by their numbers.
    pub(super) fn list(&self) -> Vec<api::Schedule> {
        self.schedules.iter().map(|(number, schedule)| schedule.to_api(*number)).collect()
    }
}

/// The file, version 1 (A-9).
#[derive(Serialize, Deserialize)]
struct SavedV1 {
    v: u32,
    last: u64,
    schedules: Vec<SavedScheduleV1>,
}

#[derive(Serialize, Deserialize)]
struct SavedScheduleV1 {
    id: u64,
    name: String,
    cron: String,
    submitter: String,
    created_at: Timestamp,
    job_file: String,
    file_name: Option<String>,
    directory: String,
    set: Vec<String>,
    next: Option<Timestamp>,
    last: Option<Run>,
    jobs: Vec<JobId>,
    left_out: u64,
}

impl Schedule {
    fn to_api(&self, number: u64) -> api::Schedule {
        api::Schedule {
            id: id(number),
            name: self.name.clone(),
            cron: self.cron.text().to_owned(),
            submitter: self.submitter.0.clone(),
            created_at: api::Time(self.created_at),
            is_paused: self.next.is_none(),
            next: self.next.map(api::Time),
            last: self.last.as_ref().map(Run::to_api),
            left_out: self.left_out,
        }
    }

    fn saved(&self, id: u64) -> SavedScheduleV1 {
        let api::SubmitRequest { job_file, file_name, directory, set, dry_run: _ } = self.request.clone();
        SavedScheduleV1 {
            id,
            name: self.name.clone(),
            cron: self.cron.text().to_owned(),
            submitter: self.submitter.0.clone(),
            created_at: self.created_at,
            job_file,
            file_name,
            directory,
            set,
            next: self.next,
            last: self.last.clone(),
            jobs: self.jobs.clone(),
            left_out: self.left_out,
        }
    }
}

impl TryFrom<SavedScheduleV1> for Schedule {
    type Error = String;

    fn try_from(saved: SavedScheduleV1) -> Result<Schedule, String> {
        let SavedScheduleV1 { job_file, file_name, directory, set, .. } = saved;
        Ok(Schedule {
            name: saved.name,
            cron: Cron::parse(&saved.cron).map_err(|message| format!("the time \"{}\" {message}", saved.cron))?,
            submitter: Submitter(saved.submitter),
            created_at: saved.created_at,
            request: api::SubmitRequest { job_file, file_name, directory, set, dry_run: false },
            next: saved.next,
            last: saved.last,
            jobs: saved.jobs,
            left_out: saved.left_out,
        })
    }
}

impl Run {
    fn to_api(&self) -> api::ScheduleRun {
        let (submitted, failure) = match &self.outcome {
            Outcome::Begun => {
                (None, Some("the control plane ended while it was submitted, or it is just now".to_owned()))
            }
            Outcome::Submitted(id) => (Some(id.clone()), None),
            Outcome::LeftOut(why) | Outcome::Failed(why) => (None, Some(why.clone())),
        };
        api::ScheduleRun { due: api::Time(self.due), submitted, failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn hour(hours: u32) -> Timestamp {
        Timestamp::EPOCH + HOUR * hours
    }

    fn hourly() -> State {
        let request = api::SubmitRequest {
            job_file: "run: x".to_owned(),
            file_name: None,
            directory: "/".to_owned(),
            set: Vec::new(),
            dry_run: false,
        };
        let cron = Cron::parse("@hourly").expect("a pattern");
        let wish = Wish { name: "x".to_owned(), cron, submitter: Submitter("ann".to_owned()), request };
        let mut state = State::default();
        state.add(wish, hour(10)).expect("there is room");
        state
    }

    /// What came of the last time, as the API shows it.
    fn last(state: &State) -> (Option<String>, Option<String>) {
        let run = state.list().remove(0).last.expect("a time has passed");
        (run.submitted, run.failure)
    }

    #[test]
    fn each_time_is_taken_once_even_if_the_control_plane_ends_at_any_moment() {
        let mut state = hourly();
        assert_eq!((state.take_due(hour(10)).len(), state.next()), (0, Some(hour(11))));
        assert_eq!(state.take_due(hour(11)).len(), 1);
        let mut state = State::restore(&state.save()).expect("its own text");
        assert_eq!(state.take_due(hour(11)).len(), 0, "it was begun");
        assert!(last(&state).1.expect("a note").contains("ended while it was submitted"));
        assert_eq!(state.take_due(hour(12)).len(), 1);
        state.finish(1, Outcome::Submitted("job-7".to_owned()), vec![JobId(7)]);
        assert_eq!(last(&state), (Some("job-7".to_owned()), None));
        let restored = State::restore(&state.save()).expect("its own text");
        assert_eq!(restored.list(), state.list());
    }

    #[test]
    fn times_that_passed_while_nothing_ran_are_left_out_and_the_jobs_before_are_kept() {
        let mut state = hourly();
        assert_eq!(state.take_due(hour(11)).len(), 1);
        state.finish(1, Outcome::Submitted("job-7".to_owned()), vec![JobId(7)]);
        assert_eq!(state.take_due(hour(14) + Duration::from_secs(1_800)).len(), 0, "the time of 12 is over");
        assert_eq!((state.next(), state.list()[0].left_out), (Some(hour(15)), 1));
        let due = state.take_due(hour(15) + Duration::from_secs(599)).remove(0);
        assert_eq!(due.before, [JobId(7)]);
        state.finish(1, Outcome::LeftOut("job-7 is live".to_owned()), Vec::new());
        assert_eq!(state.list()[0].left_out, 2);
        assert_eq!(state.take_due(hour(16)).remove(0).before, [JobId(7)]);
    }

    #[test]
    fn a_paused_schedule_goes_on_with_its_next_time_and_one_that_is_removed_ends() {
        let mut state = hourly();
        assert!(state.change(1, Change::Pause, hour(10)).is_some_and(|shown| shown.is_paused && shown.next.is_none()));
        assert!(state.take_due(hour(20)).is_empty() && state.next().is_none());
        let resumed = state.change(1, Change::Resume, hour(20)).expect("it is there");
        assert_eq!((resumed.next, resumed.left_out), (Some(api::Time(hour(21))), 0));
        assert_eq!(state.take_due(hour(21)).len(), 1);
        assert!(state.change(1, Change::Remove, hour(21)).is_some());
        state.finish(1, Outcome::Failed("too late".to_owned()), Vec::new());
        assert!(state.list().is_empty() && state.change(1, Change::Pause, hour(21)).is_none());
    }

    #[test]
    fn a_number_is_used_once_and_there_are_so_many_at_most() {
        let mut state = hourly();
        let wish = || {
            let Schedule { name, cron, submitter, request, .. } =
                Schedule::try_from(hourly().schedules[&1].saved(1)).expect("its own");
            Wish { name, cron, submitter, request }
        };
        assert!(state.change(1, Change::Remove, hour(10)).is_some());
        assert_eq!(state.add(wish(), hour(10)).expect("there is room").id, "schedule-2");
        while state.add(wish(), hour(10)).is_some() {}
        assert_eq!(state.list().len(), SCHEDULES_MAX);
        assert!(State::restore(r#"{"v": 2, "last": 0, "schedules": []}"#).is_err() && State::restore("x").is_err());
    }
}
