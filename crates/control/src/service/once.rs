//! Changes, each answered once it is durable. A change with an idempotency key is made once: its answer
//! becomes durable in the same commit, and a repeated or concurrent request with the same key gets that
//! answer.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;
use super::actor::Actor;
use super::batch::{Batch, Deferred};
use super::handle::Reply;
use gangline_store::db;
use gangline_store::model::{KeptAnswer, Refused, RequestKey};
use gangline_store::ports::Queries as _;

impl Actor {
    /// Makes a change. While the journal is poisoned, the change is refused before it touches the engine
    ///
    pub(super) fn change<T: Serialize + DeserializeOwned + Send + 'static>(
        &mut self,
        batch: &mut Batch,
        key: Option<RequestKey>,
        reply: Reply<T>,
        work: impl FnOnce(&mut Self, &mut Batch) -> Result<T, Error>,
    ) {
        let outcome = match (self.journal.poison(), key) {
            (Some(cause), _) => Err(Error::Poisoned { cause: cause.to_owned() }),
            (None, Some(key)) => self.change_once(batch, key, work),
            (None, None) => work(self, batch),
        };
        answer_after_commit(batch, reply, outcome);
    }

    /// Makes a change once for its key. A refusal isn't stored: it changed nothing, and the request may
    /// succeed later.
    fn change_once<T: Serialize + DeserializeOwned>(
        &mut self,
        batch: &mut Batch,
        key: RequestKey,
        work: impl FnOnce(&mut Self, &mut Batch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(kept) = self.kept_answer(&key)? {
            return kept.for_request(&key).map_err(Error::from).and_then(|body| {
                let unreadable =
                    |error: serde_json::Error| Error::Unreadable { code: "G0399", cause: error.to_string() };
                serde_json::from_str(body).map_err(unreadable)
            });
        }
        let answer = work(self, batch)?;
        let body = serde_json::to_string(&answer).expect("wire types have string keys only");
        let kept = KeptAnswer { request: key.request, body, is_whole: true };
        self.known.add(&key.user, &key.key);
        self.rows.answers.push((key, kept));
        Ok(answer)
    }

    /// Returns the answer stored under a key, durable or in the current batch.
    fn kept_answer(&self, key: &RequestKey) -> Result<Option<KeptAnswer>, Error> {
        if !self.known.may_have(key) {
            return Ok(None);
        }
        let in_batch = self.rows.answers.iter().find(|(kept, _)| (&kept.user, &kept.key) == (&key.user, &key.key));
        if let Some((_, answer)) = in_batch {
            return Ok(Some(answer.clone()));
        }
        let read = self.reader.answer(key);
        read.map_err(|error: db::Error| Error::Unreadable { code: error.code(), cause: error.to_string() })
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Damaged(key) => Error::AnswerDamaged(key),
            Refused::OtherRequest(key) => Error::KeyReused(key),
        }
    }
}

/// Sends an answer once the batch is durable; if the commit fails, a success becomes that failure.
fn answer_after_commit<T: Send + 'static>(batch: &mut Batch, reply: Reply<T>, outcome: Result<T, Error>) {
    let deferred: Deferred = Box::new(move |committed| {
        let answer = match committed {
            Ok(()) => outcome,
            Err(failure) => outcome.and(Err(failure.clone())),
        };
        // The caller may have given up waiting.
        let _ = reply.send(answer);
    });
    batch.answers.push(deferred);
}
