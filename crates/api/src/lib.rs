//! The types of the HTTP API, version 1 (`/api/v1`): requests, answers, errors and exit codes, shared by the
//! server and its clients.
//!
//! They are wire types: their version is in the path, the OpenAPI document describes them, and the
//! command line and the page see nothing else. Times are RFC 3339 in UTC, durations are seconds, sizes
//! are bytes, money is nano-dollars. Pure.

mod alert;
mod cost;
mod error;
mod exit;
mod explain;
mod goodput;
mod job;
mod metric;
mod model;
mod node;
mod plan;
mod schedule;
mod submit;
mod sweep;
mod template;
mod time;
mod token;
mod why;

pub use alert::{Alert, AlertList, AlertReceiver, Silence, SilenceRequest};
pub use cost::{
    BudgetList, BudgetStanding, CostDemand, CostEstimate, CostForecast, CostGroup, CostLine, CostReport, CostUnitPrice,
    CostUsage, CostUsageRow, ForecastGroup, ForecastJob, JobCost, KindDemand,
};
pub use error::{ErrorBody, ErrorDetail, Problem};
pub use exit::Exit;
pub use explain::{Blocker, Dependency, Explanation, FirstBy, HistoryLine, Placement};
pub use goodput::JobGoodput;
pub use job::{
    Allocation, Attempt, BucketLine, Checkpoints, Code, DatasetReads, Diagnosis, Fault, Gang, Job, JobList,
    JobStanding, JobState, Price, Progress, Rank, Recovery, RecoveryLine, Share, Usage,
};
pub use metric::{
    LastValue, Metric, MetricCurve, MetricCurves, MetricList, MetricSource, MetricValues, NodeMetricCurves,
    NodeMetricList,
};
pub use model::{
    AttemptLineage, CheckpointLineage, DataLineage, ExportedRequest, JobLineage, LINEAGE_VERSION, Lineage, Model,
    ModelEvent, ModelList, ModelVersion, PromoteRequest, RegisterRequest, Registered, RunLineage, VerifiedRequest,
};
pub use node::{
    CachedDataset, Drain, GpuHours, Health, Node, NodeAgent, NodeAttempt, NodeDetail, NodeEvent, NodeList, NodeProblem,
    Queue, QueueList, Slot,
};
pub use plan::AgainstPlan;
pub use schedule::{Schedule, ScheduleList, ScheduleRequest, ScheduleRun};
pub use submit::{
    Answer, CancelAnswer, ChangeAnswer, ChangeRequest, DryRun, LogChunk, ResumeRequest, SubmitRequest, Submitted,
};
pub use sweep::{
    Budget, CancelSweepAnswer, EarlyStop, JobSweep, MetricPoint, Parameter, Sweep, SweepPoint, SweepSubmitted,
};
pub use template::{Template, TemplateList};
pub use time::Time;
pub use token::{PageLink, Reloaded, TOKEN_FILE, TokenRotated};
pub use why::{Cause, LastFault, Why};
