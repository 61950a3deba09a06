//! A remote in memory that fails, lies or stops as a test wants.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use gangline_base::Timestamp;
use gangline_objects::{Fault, Object, Remote, State, Tag};

use crate::Digest;
use crate::archive::catalog::{Catalog, step_of_key};
use crate::archive::vault::Vault;

/// What a remote is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Put,
    Get,
    List,
    Delete,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Not done, with an error that may pass.
    Refused,
    /// Not done, with an error that won't pass.
    Denied,
    /// Done, with an error that may pass: the answer was lost.
    Unanswered,
    /// Not done, without an error.
    Lost,
    /// Half of the bytes.
    Short,
}

type Plan = Box<dyn FnMut(Act, &str) -> Outcome + Send>;

#[derive(Default)]
struct Inner {
    objects: BTreeMap<String, Vec<u8>>,
    plan: Option<Plan>,
    acts: Vec<(Act, String)>,
    keeps_conditions: bool,
}

/// The remote; clones share what is on it.
#[derive(Clone, Default)]
pub(super) struct Shelf(Arc<Mutex<Inner>>);

impl Shelf {
    /// From here on, conditions are kept.
    pub(super) fn keep_conditions(&self) {
        self.0.lock().unwrap().keeps_conditions = true;
    }

    /// From here on, `plan` says what comes of each act.
    pub(super) fn plan(&self, plan: impl FnMut(Act, &str) -> Outcome + Send + 'static) {
        self.0.lock().unwrap().plan = Some(Box::new(plan));
    }

    /// All acts succeed again.
    pub(super) fn heal(&self) {
        self.0.lock().unwrap().plan = None;
    }

    /// From here on, so many changes succeed; then nothing does, as if the pushing process had been killed.
    pub(super) fn die_after(&self, changes: usize) {
        let mut made = 0;
        self.plan(move |act, _| {
            made += usize::from(matches!(act, Act::Put | Act::Delete));
            if made > changes { Outcome::Denied } else { Outcome::Done }
        });
    }

    /// What was asked for since the last time.
    pub(super) fn acts(&self) -> Vec<(Act, String)> {
        std::mem::take(&mut self.0.lock().unwrap().acts)
    }

    pub(super) fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.0.lock().unwrap().objects.clone()
    }

    /// What is on it, by hashes; of catalogs, without the time of saving. Leases are not counted.
    pub(super) fn summary(&self, vault: &Vault) -> BTreeMap<String, Digest> {
        let summed = |(key, bytes): (String, Vec<u8>)| {
            let Some(step) = step_of_key(&key) else { return (key, Digest::of(&bytes)) };
            let text = vault.open_catalog(&key, bytes).unwrap();
            let catalog = Catalog { saved_at: 0, ..Catalog::read(step, &text).unwrap() };
            (key, Digest::of(&catalog.write()))
        };
        self.objects().into_iter().filter(|(key, _)| !key.starts_with("leases/")).map(summed).collect()
    }

    pub(super) fn set(&self, objects: BTreeMap<String, Vec<u8>>) {
        self.0.lock().unwrap().objects = objects;
    }

    fn act<T>(
        &self,
        act: Act,
        key: &str,
        mut change: impl FnMut(&mut Inner, bool) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut inner = self.0.lock().unwrap();
        inner.acts.push((act, key.to_owned()));
        let mut plan = inner.plan.take();
        let outcome = plan.as_mut().map_or(Outcome::Done, |plan| plan(act, key));
        inner.plan = plan;
        match outcome {
            Outcome::Done => change(&mut inner, false),
            Outcome::Short | Outcome::Lost => change(&mut inner, true),
            Outcome::Refused => Err(Fault::Passing("503 Slow Down".into())),
            Outcome::Denied => Err(Fault::Lasting("403 Forbidden".into())),
            Outcome::Unanswered => {
                change(&mut inner, false)?;
                Err(Fault::Passing("the connection was reset".into()))
            }
        }
    }
}

fn state_of(bytes: &[u8]) -> State {
    State { tag: Tag(Digest::of(bytes).to_string()), bytes: bytes.len() as u64 }
}

impl Remote for Shelf {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        self.act(Act::Put, key, |inner, is_lost| {
            if !is_lost {
                inner.objects.insert(key.to_owned(), bytes.to_vec());
            }
            Ok(())
        })
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        self.act(Act::Get, key, |inner, is_short| {
            let object = inner.objects.get(key).ok_or(Fault::Missing)?;
            let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap().min(object.len()));
            let end = if is_short { start + (end - start) / 2 } else { end };
            Ok(object[start..end].to_vec())
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault> {
        self.act(Act::List, prefix, |inner, _| {
            let object = |(key, bytes): (&String, &Vec<u8>)| Object {
                key: key.clone(),
                bytes: bytes.len() as u64,
                modified: Timestamp::EPOCH,
                tag: None,
            };
            Ok(inner.objects.iter().filter(|(key, _)| key.starts_with(prefix)).map(object).collect())
        })
    }

    fn delete(&self, key: &str) -> Result<(), Fault> {
        self.act(Act::Delete, key, |inner, _| {
            inner.objects.remove(key);
            Ok(())
        })
    }

    fn state(&self, key: &str) -> Result<Option<State>, Fault> {
        self.act(Act::Get, key, |inner, _| Ok(inner.objects.get(key).map(|bytes| state_of(bytes))))
    }

    fn size(&self, key: &str) -> Result<Option<u64>, Fault> {
        Ok(self.objects().get(key).map(|bytes| bytes.len() as u64))
    }

    fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Fault> {
        if !self.0.lock().unwrap().keeps_conditions {
            return Err(Fault::Unable("501 Not Implemented".into()));
        }
        self.act(Act::Put, key, |inner, is_lost| {
            let state = inner.objects.get(key).map(|bytes| state_of(bytes).tag);
            if state.as_ref() != tag {
                return Ok(None);
            }
            if !is_lost {
                inner.objects.insert(key.to_owned(), bytes.to_vec());
            }
            Ok(Some(state_of(bytes).tag))
        })
    }

    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault> {
        self.act(Act::Delete, key, |inner, _| {
            let may = may();
            if may {
                inner.objects.remove(key);
            }
            Ok(may)
        })
    }
}
