//! How a store begins a save: checks the tensors, copies this rank's share, and queues the copy to be written.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use gangline_base::Step;

use crate::alike::Alike;
use crate::commit::Work;
use crate::confirmation::Gate;
use crate::digest::FramedHasher;
use crate::manifest::hash_declaration;
use crate::note::{self, ORIGIN_PREFIX};
use crate::options::Writer;
use crate::pending::Slot;
use crate::refusal::Turn;
use crate::staged::Staged;
use crate::staging::Noted;
use crate::store::{Job, Store};
use crate::tensor::{check_tensors, share};
use crate::{AlikeValue, Confirmation, Digest, Error, NoteTypes, Pending, TensorView, with_causes};

impl Store {
    /// Copies this rank's share of the tensors to host memory, and writes the copy in the background. The
    /// caller waits only for the copy. Every rank of a gang passes all replicated tensors, and its own parts
    /// of sharded ones ([`PartOf`](crate::PartOf)).
    ///
    /// The memory of the copies is kept for later saves until the store is dropped: the size of the largest
    /// save for each save that was in flight at the same time, so at most two copies. [`crate::Options::memory_max`]
    /// and [`crate::Options::keeps_memory`] limit it.
    ///
    /// If [`SAVES_IN_FLIGHT_MAX`](crate::SAVES_IN_FLIGHT_MAX) saves are in flight, this call first waits for
    /// one to end.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`], [`Error::Limit`], [`Error::ReadOnly`], or [`Error::Poisoned`] after a failed
    /// fsync.
    pub fn save(
        &self,
        step: Step,
        tensors: &[TensorView<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Pending, Error> {
        self.save_noted(step, tensors, (metadata, &NoteTypes::new()), &[])
    }

    /// Saves like [`Store::save`], with metadata that may hold values other than text, and with values that
    /// must be equal on all ranks: if they differ, the commit is refused ([`Error::Disagreement`]).
    ///
    /// # Errors
    /// As from [`Store::save`]; [`Error::InvalidOptions`] for a metadata value that doesn't match its type.
    /// The other ranks are told, and fail with [`Error::Abandoned`].
    pub fn save_noted(
        &self,
        step: Step,
        tensors: &[TensorView<'_>],
        notes: (&BTreeMap<String, String>, &NoteTypes),
        values: &[AlikeValue<'_>],
    ) -> Result<Pending, Error> {
        self.begin((step, None), tensors, notes, values)
    }

    /// Saves like [`Store::save_noted`], from memory that the caller leaves unchanged only until it says so:
    /// meant for a thread that copies while the training goes on. The copy is written at once, but the
    /// checkpoint becomes visible only after [`Confirmation::confirm`], by which the caller says that no value
    /// changed before this call had returned.
    ///
    /// # Errors
    /// As from [`Store::save_noted`]; later, in the background, [`Error::Changed`].
    pub fn save_unconfirmed(
        &self,
        step: Step,
        tensors: &[TensorView<'_>],
        notes: (&BTreeMap<String, String>, &NoteTypes),
        values: &[AlikeValue<'_>],
    ) -> Result<(Pending, Confirmation), Error> {
        let (confirmation, gate) = Confirmation::new();
        Ok((self.begin((step, Some(gate)), tensors, notes, values)?, confirmation))
    }

    /// Copies, and queues the copy; with a gate, the commit waits for it.
    fn begin(
        &self,
        (step, gate): (Step, Option<Gate>),
        tensors: &[TensorView<'_>],
        notes: (&BTreeMap<String, String>, &NoteTypes),
        values: &[AlikeValue<'_>],
    ) -> Result<Pending, Error> {
        let writing = self.writing.as_ref().ok_or(Error::ReadOnly)?;
        self.shared.disk.check_poison()?;
        let turn = self.next_turn(step);
        let staged = self.stage(writing.writer, turn, tensors, notes);
        let (mut work, slot) = staged.inspect_err(|error| writing.refuse(turn, &with_causes(error)))?;
        if writing.writer.world_size > 1 {
            work.alike = Some(Alike::of(tensors, notes.0, values, self.shared.options.compare));
        }
        work.gate = gate;
        if work.gate.is_none() {
            work.noted = Noted::write(&work, &self.shared.root, (self.shared.options.run(), writing.writer));
        }
        let (reply, pending) = Pending::new(step);
        writing.queue.send(Job::Save { work: Box::new(work), slot, reply }).map_err(|_| Error::Closed)?;
        Ok(pending)
    }

    /// Refuses a save, for a rank of a gang whose caller can't take part in it. The other ranks get the
    /// reason, in the background, and fail soon ([`Error::Abandoned`]).
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn refuse(&self, step: Step, why: &str) -> Result<(), Error> {
        let writing = self.writing.as_ref().ok_or(Error::ReadOnly)?;
        writing.refuse(self.next_turn(step), why);
        Ok(())
    }

    /// Returns the turn of the next save of this step: how many times in a row the step was requested.
    fn next_turn(&self, step: Step) -> Turn {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let number = if turn.step == step { turn.number.saturating_add(1) } else { 1 };
        *turn = Turn { step, number };
        *turn
    }

    /// Copies this rank's share to host memory.
    fn stage(
        &self,
        writer: Writer,
        turn: Turn,
        tensors: &[TensorView<'_>],
        (metadata, types): (&BTreeMap<String, String>, &NoteTypes),
    ) -> Result<(Work, Slot), Error> {
        check_tensors(tensors)?;
        note::check(metadata, types)?;
        let slot = self.slots.take(turn.step)?;
        let mine = share(tensors, writer.rank, writer.world_size);
        let mut mine: Vec<&TensorView<'_>> = mine.into_iter().map(|index| &tensors[index]).collect();
        // Wide elements come first, so every tensor is aligned to its element, as in safetensors' own writer.
        mine.sort_by(|a, b| (b.data_type.alignment(), a.name).cmp(&(a.data_type.alignment(), b.name)));
        let staged = Staged::copy(&mine, &self.slabs)?;
        let plan = plan(tensors, (metadata, types));
        let Turn { step, number: turn } = turn;
        let resumed = self.resumed().take();
        let (metadata, metadata_types) = (metadata.clone(), types.clone());
        let (alike, is_taken_over, noted, gate) = (None, false, None, None);
        let work =
            Work { step, staged, metadata, metadata_types, plan, resumed, turn, alike, is_taken_over, noted, gate };
        Ok((work, slot))
    }
}

/// Returns a digest of what all ranks of a gang must agree on: the replicated tensors and the metadata.
fn plan(tensors: &[TensorView<'_>], (metadata, types): (&BTreeMap<String, String>, &NoteTypes)) -> Digest {
    let mut sorted: Vec<&TensorView<'_>> = tensors.iter().filter(|tensor| tensor.part_of.is_none()).collect();
    sorted.sort_by_key(|tensor| tensor.name);
    let mut hasher = FramedHasher::new("gangline checkpoint plan 1");
    hasher.number(sorted.len() as u64);
    for tensor in sorted {
        hash_declaration(&mut hasher, tensor.name, tensor.data_type, tensor.shape);
    }
    for (name, value) in metadata.iter().filter(|(name, _)| !name.starts_with(ORIGIN_PREFIX)) {
        hasher.field(name.as_bytes());
        hasher.field(value.as_bytes());
    }
    for (name, kind) in types {
        hasher.field(name.as_bytes());
        hasher.number(*kind as u64);
    }
    hasher.finish()
}
