//! The run: restore, step, save, until the last step or an order to stop.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gangline_base::{Bytes, Phase};
use gangline_storage::{Options, Pending, Role, Saved, Step, Store};

use crate::args::{Args, Environment};
use crate::checkpoint::{self, SKIPPED, State, TEXT_HASH};
use crate::corpus::Corpus;
use crate::data::Data;
use crate::error::Error;
use crate::gang::{Agreement, Gang, Meeting};
use crate::model::{Model, Parameter, first_parameters, layout};
use crate::optimizer::{Adam, learning_rate};
use crate::random::narrow;
use crate::report::Reporter;

/// Batches of held-out text that the last line's loss is the mean of.
const HELD_OUT_BATCHES: u64 = 16;

/// The notes in checkpoints that say how the batch was divided.
const BATCH: &str = "batch";
const RANKS: &str = "ranks";

/// A little less than the largest threshold that glibc takes over.
const FREED_BYTES_KEPT: usize = 31 << 20;

/// Where lines for people go.
pub(crate) trait Console {
    /// Shows a line.
    fn say(&mut self, line: &str);
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All steps are done and saved.
    Done,
    /// Stopped on orders, and saved.
    Stopped,
}

/// A run under way.
struct Run<'a> {
    args: &'a Args,
    rank: u32,
    world_size: u32,
    skip_data_through: Option<u64>,
    corpus: Corpus,
    data: Data,
    layout: Vec<Parameter>,
    reporter: Reporter,
    console: &'a mut dyn Console,
    saver: Saver,
}

/// Saves, one at a time, beside the training.
struct Saver {
    store: Option<Store>,
    pending: Option<Pending>,
    /// Rank 0 tells of checkpoints for all.
    is_spokesman: bool,
    metadata: BTreeMap<String, String>,
    /// Checkpoints saved, their bytes, and how long training stood still for them.
    saved: u32,
    bytes: Bytes,
    stood_still: Duration,
}

/// Trains until done or told to stop.
pub(crate) fn train(args: &Args, environment: &Environment, console: &mut dyn Console) -> Result<Ending, Error> {
    args.check()?;
    keep_freed_memory();
    let mut reporter = Reporter::connect(environment.socket.as_deref(), environment.rank);
    reporter.total_steps(args.steps);
    reporter.phase(Phase::Init);
    let mut corpus = Corpus::read(args, environment)?;
    let data = Data::open(&mut corpus, args, environment)?;
    let mut gang = meet(args, environment, &corpus)?;
    let saver = Saver::open(args, environment, &corpus)?;
    let Environment { rank, world_size, skip_data_through, .. } = *environment;
    let layout = layout(args);
    let mut run = Run { args, rank, world_size, skip_data_through, corpus, data, layout, reporter, console, saver };
    run.introduce();
    let mut state = run.restore()?;
    let ending = run.learn(&mut gang, &mut state)?;
    run.saver.finish(&mut run.reporter, run.console)?;
    if rank == 0 && run.saver.saved > 0 {
        let Saver { saved, bytes, stood_still, .. } = &run.saver;
        let millis = stood_still.as_millis();
        run.console.say(&format!("{saved} checkpoints, {bytes}; training stood still for {millis} ms to copy them"));
    }
    if ending == Ending::Done && rank == 0 {
        run.conclude(&state, environment)?;
    }
    run.reporter.phase(Phase::Done);
    Ok(ending)
}

/// Has glibc keep freed buffers rather than return them to the kernel and fetch them again in each step, which takes a
/// third of the time: its threshold for that grows to the largest block it has seen freed.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(FREED_BYTES_KEPT)));
}

/// Meets the other ranks, if there are any, and makes sure that all train the same thing.
fn meet(args: &Args, environment: &Environment, corpus: &Corpus) -> Result<Gang, Error> {
    let Some((address, port)) = environment.master.clone().filter(|_| environment.world_size > 1) else {
        return Ok(Gang::alone());
    };
    // Where a rank reads its text and keeps its checkpoints is its own business, and so is its log.
    let shared = Args {
        corpus: Vec::new(),
        data: None,
        checkpoint_dir: None,
        sample_log: None,
        log_every: 0,
        step_time_min: 0,
        ..args.clone()
    };
    let fingerprint = *blake3::hash(format!("{shared:?} {}", corpus.id).as_bytes()).as_bytes();
    Gang::meet(&Meeting {
        rank: environment.rank,
        world_size: environment.world_size,
        address,
        port,
        attempt: environment.attempt,
        fingerprint,
        timeout: args.peer_timeout(),
    })
}

impl Run<'_> {
    fn introduce(&mut self) {
        let parameters: usize = self.layout.iter().map(Parameter::len).sum();
        if self.rank == 0 {
            self.console.say(&format!(
                "{parameters} parameters, {} ranks, {} bytes of text from {} files",
                self.world_size, self.corpus.bytes, self.corpus.files
            ));
        }
    }

    /// The newest good checkpoint's state, or the first state of the seed.
    fn restore(&mut self) -> Result<State, Error> {
        self.reporter.phase(Phase::Restore);
        if let Some(store) = &self.saver.store {
            let latest = store.latest()?;
            for skipped in &latest.skipped {
                let problem = skipped.problems.first().map(ToString::to_string).unwrap_or_default();
                self.console.say(&format!("passed over the checkpoint of step {}: {problem}", skipped.step));
            }
            if let Some(info) = latest.checkpoint {
                let mut state = State::load(store, &info, &self.layout)?;
                store.resume_from(info.step)?;
                self.resume_data(&state, info.metadata)?;
                self.console.say(&format!("rank {} resumed from step {}", self.rank, state.step));
                self.skip(&mut state);
                return Ok(state);
            }
        }
        let parameters = first_parameters(&self.layout, self.args.seed);
        let mut state = State { step: 0, skipped: 0, place: None, adam: Adam::new(parameters.len()), parameters };
        self.skip(&mut state);
        Ok(state)
    }

    /// Goes on behind the samples that the checkpoint has been trained on.
    fn resume_data(&mut self, state: &State, mut notes: BTreeMap<String, String>) -> Result<(), Error> {
        let place = checkpoint::take_place(&mut notes);
        notes.remove(SKIPPED);
        // With another --batch, another global batch is meant.
        let is_batch_kept = self.args.global_batch.is_none() && notes.get(BATCH) == self.saver.metadata.get(BATCH);
        let is_resumed = place.map_or(Ok(false), |place| self.data.resume(&place, is_batch_kept))?;
        if !is_resumed {
            self.data.skip(state.step + state.skipped);
        }
        // Another number of ranks goes on with the same samples.
        let is_same = |(name, value): (&String, &String)| name == RANKS || notes.get(name) == Some(value);
        if !is_resumed || !self.saver.metadata.iter().all(is_same) {
            self.console.say("the options or the text have changed since the checkpoint; going on with the new");
        }
        Ok(())
    }

    /// Leaves out the batches that are said to make numbers go bad.
    fn skip(&mut self, state: &mut State) {
        let more = self.skip_data_through.map_or(0, |through| through.saturating_sub(state.step));
        if more > 0 {
            state.skipped += more;
            self.data.skip(more);
            self.console.say(&format!("leaves out the next {more} batches"));
        }
    }

    fn learn(&mut self, gang: &mut Gang, state: &mut State) -> Result<Ending, Error> {
        let model = Model::new(self.args, &self.layout, &state.parameters)?;
        let started = Instant::now();
        let first = state.step;
        let mut window = (started, first);
        while state.step < self.args.steps {
            let began = Instant::now();
            let agreed = self.step(gang, &model, state)?;
            if self.rank == 0 && (state.step.is_multiple_of(self.args.log_every) || state.step == self.args.steps) {
                let speed = self.tokens_per_second(state.step - window.1, window.0.elapsed());
                let rate = learning_rate(state.step, self.args.steps, self.args.lr);
                let step = state.step;
                self.console.say(&format!("step {step} loss {:.4} lr {rate:.1e} tokens/s {speed:.0}", agreed.loss));
                window = (Instant::now(), step);
            }
            let is_last = state.step == self.args.steps;
            self.saver.poll(&mut self.reporter, self.console)?;
            if is_last || agreed.is_stopping || state.step.is_multiple_of(self.args.checkpoint_every) {
                self.saver.save(state, &self.layout, &mut self.reporter, self.console)?;
            }
            if agreed.is_stopping && !is_last {
                self.console.say(&format!("rank {} stops on orders after step {}", self.rank, state.step));
                return Ok(Ending::Stopped);
            }
            self.pace(began);
        }
        if self.rank == 0 && state.step > first {
            let steps = state.step - first;
            let elapsed = started.elapsed();
            let rate = steps as f64 / elapsed.as_secs_f64();
            let speed = self.tokens_per_second(steps, elapsed);
            let seconds = elapsed.as_secs_f64();
            self.console.say(&format!("{steps} steps in {seconds:.1} s: {rate:.1} steps/s, {speed:.0} tokens/s"));
        }
        Ok(Ending::Done)
    }

    /// One optimizer step on every rank.
    fn step(&mut self, gang: &mut Gang, model: &Model, state: &mut State) -> Result<Agreement, Error> {
        let step = state.step + 1;
        self.reporter.phase(Phase::Data);
        let batch = self.data.next(step)?;
        self.reporter.phase(Phase::Compute);
        let (mut loss, mut gradients) = model.loss_and_gradients(&batch)?;
        let weight = narrow(self.data.loss_weight());
        if weight != 1.0 {
            loss *= weight;
            gradients.iter_mut().for_each(|gradient| *gradient *= weight);
        }
        let mine = Agreement { step, loss, is_stopping: self.reporter.is_stopping() };
        let agreed = gang.average(&mut gradients, mine, &mut |phase| self.reporter.phase(phase))?;
        if !agreed.loss.is_finite() {
            return Err(Error::Diverged { step });
        }
        self.reporter.phase(Phase::Compute);
        let rate = learning_rate(step, self.args.steps, self.args.lr);
        state.adam.apply(step, rate, &gradients, &mut state.parameters);
        model.set(&state.parameters)?;
        state.step = step;
        state.place = Some(self.data.place());
        self.reporter.step(step, agreed.loss, self.tokens_per_step());
        Ok(agreed)
    }

    /// Tokens of a step on this rank.
    fn tokens_per_step(&self) -> u64 {
        self.data.rows() as u64 * u64::from(self.args.context)
    }

    /// Of all ranks together.
    fn tokens_per_second(&self, steps: u64, elapsed: Duration) -> f64 {
        let tokens = u64::from(self.data.global_batch()) * u64::from(self.args.context);
        (steps * tokens) as f64 / elapsed.as_secs_f64()
    }

    /// Lets the step that `began` then take as long as is asked for.
    fn pace(&self, began: Instant) {
        let rest = Duration::from_millis(self.args.step_time_min).saturating_sub(began.elapsed());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }

    /// Rank 0, at the end: how well it does on text that it hasn't seen.
    fn conclude(&mut self, state: &State, environment: &Environment) -> Result<(), Error> {
        let model = Model::new(self.args, &self.layout, &state.parameters)?;
        let mut sum = 0.0;
        for batch in self.corpus.held_out_batches(HELD_OUT_BATCHES, self.args, environment)? {
            sum += f64::from(model.loss(&batch)?);
        }
        let loss = sum / HELD_OUT_BATCHES as f64;
        let bits = loss / std::f64::consts::LN_2;
        self.console.say(&format!("validation loss {loss:.4} ({bits:.3} bits per byte)"));
        Ok(())
    }
}

impl Saver {
    fn open(args: &Args, environment: &Environment, corpus: &Corpus) -> Result<Saver, Error> {
        let Environment { rank, world_size, attempt: tag, .. } = *environment;
        let (staging, restore_below) = (environment.staging.clone(), environment.restore_below.map(Step));
        let role = Role::Writer { rank, world_size, tag };
        let options = Options { role, run: environment.job.clone(), staging, restore_below, ..Options::default() };
        let folder = args.checkpoint_dir.as_ref().or(environment.checkpoint_dir.as_ref());
        let store = folder.map(|folder| Store::open(folder, options)).transpose()?;
        let note = |name: &str, value: String| (name.to_owned(), value);
        let metadata = BTreeMap::from([
            note("trainer", "tinygpt".to_owned()),
            note("seed", args.seed.to_string()),
            note("steps", args.steps.to_string()),
            note(BATCH, args.batch.to_string()),
            note("lr", args.lr.to_string()),
            note(RANKS, world_size.to_string()),
            note(TEXT_HASH, corpus.id.clone()),
        ]);
        let (saved, bytes, stood_still) = (0, Bytes(0), Duration::ZERO);
        Ok(Saver { store, pending: None, is_spokesman: rank == 0, metadata, saved, bytes, stood_still })
    }

    /// Starts to save, after the save before has ended.
    fn save(
        &mut self,
        state: &State,
        layout: &[Parameter],
        reporter: &mut Reporter,
        console: &mut dyn Console,
    ) -> Result<(), Error> {
        let began = Instant::now();
        self.finish(reporter, console)?;
        if let Some(store) = &self.store {
            reporter.phase(Phase::Checkpoint);
            self.pending = Some(state.save(store, layout, &self.metadata)?);
            self.stood_still += began.elapsed();
        }
        Ok(())
    }

    /// Tells of a save that has ended meanwhile.
    fn poll(&mut self, reporter: &mut Reporter, console: &mut dyn Console) -> Result<(), Error> {
        if let Some(outcome) = self.pending.as_ref().and_then(Pending::try_wait) {
            self.pending = None;
            self.tell(outcome, reporter, console)?;
        }
        Ok(())
    }

    /// Waits for the save under way, if any.
    fn finish(&mut self, reporter: &mut Reporter, console: &mut dyn Console) -> Result<(), Error> {
        if let Some(pending) = self.pending.take() {
            reporter.phase(Phase::Checkpoint);
            self.tell(pending.wait(), reporter, console)?;
        }
        Ok(())
    }

    /// A save that failed ends the run: without checkpoints it would be at the mercy of the next fault.
    fn tell(
        &mut self,
        outcome: Result<Saved, gangline_storage::Error>,
        reporter: &mut Reporter,
        console: &mut dyn Console,
    ) -> Result<(), Error> {
        let saved = outcome?;
        self.saved += 1;
        self.bytes = self.bytes + saved.bytes;
        if self.is_spokesman {
            reporter.checkpoint(saved.step.0, saved.bytes.0);
        }
        if let Err(error) = saved.retention {
            console.say(&format!("old checkpoints stay: failed to {error}"));
        }
        Ok(())
    }
}
