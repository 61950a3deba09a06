//! The state of a run as tensors in a store, and back.

use std::collections::BTreeMap;

use gangline_storage::{CheckpointInfo, DataType, Pending, Step, Store, Tensor};

use crate::data::Place;
use crate::error::Error;
use crate::model::Parameter;
use crate::optimizer::Adam;

/// All that a run is after a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) step: u64,
    /// Batches that were left out of the data's order so far.
    pub(crate) skipped: u64,
    /// Where it is in the data; checkpoints of before there was an order have none.
    pub(crate) place: Option<Place>,
    pub(crate) parameters: Vec<f32>,
    pub(crate) adam: Adam,
}

/// The three parts of the state, each with a name and one value for each parameter.
const PARTS: [&str; 3] = ["model", "adam.first", "adam.second"];
/// The notes of where it is in the data.
const DATA: &str = "data";
const GLOBAL_BATCH: &str = "global_batch";
/// The note with the hash of the text.
pub(crate) const TEXT_HASH: &str = "text_blake3";
/// The note that says which data was read (docs/guides/models.md).
const ORIGIN: &str = "gangline.data";
/// The note in a checkpoint that says how many batches were left out; not there if none were.
pub(crate) const SKIPPED: &str = "skipped_batches";

impl State {
    /// Starts to save it. Each parameter is a tensor of its own, and so is each of its moments.
    pub(crate) fn save(
        &self,
        store: &Store,
        layout: &[Parameter],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Pending, Error> {
        let mut tensors = Vec::with_capacity(layout.len() * PARTS.len());
        for (part, values) in PARTS.into_iter().zip([&self.parameters, &self.adam.first, &self.adam.second]) {
            let mut rest = values.as_slice();
            for parameter in layout {
                let (values, others) = rest.split_at(parameter.len());
                rest = others;
                tensors.push(Tensor {
                    name: format!("{part}.{}", parameter.name),
                    data_type: DataType::F32,
                    shape: parameter.shape.clone(),
                    data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                });
            }
        }
        let views: Vec<_> = tensors.iter().map(Tensor::as_view).collect();
        let mut notes = metadata.clone();
        notes.extend((self.skipped > 0).then(|| (SKIPPED.to_owned(), self.skipped.to_string())));
        if let Some(Place { state, global_batch }) = &self.place {
            notes.insert(DATA.to_owned(), state.clone());
            notes.insert(GLOBAL_BATCH.to_owned(), global_batch.to_string());
        }
        notes.extend(metadata.get(TEXT_HASH).map(|hash| (ORIGIN.to_owned(), self.origin(hash))));
        Ok(store.save(Step(self.step), &views, &notes)?)
    }

    /// Returns what the registry of models shows as the data that a checkpoint was trained on.
    fn origin(&self, hash: &str) -> String {
        let samples = format!("{} steps, without the twentieth that is held out", self.step);
        let text = serde_json::json!({
            "name": "text", "source": "tinygpt's corpus of Rust sources", "digest": format!("blake3 {hash} (of every byte)"),
            "samples": samples,
        });
        serde_json::Value::Array(vec![text]).to_string()
    }

    /// Loads the state that `info` describes; it has to be of this layout.
    pub(crate) fn load(store: &Store, info: &CheckpointInfo, layout: &[Parameter]) -> Result<State, Error> {
        let step = info.step.0;
        let tensors: BTreeMap<String, Tensor> =
            store.load(info.step)?.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mut parts = PARTS.map(|_| Vec::new());
        for (part, values) in PARTS.iter().zip(&mut parts) {
            for parameter in layout {
                let name = format!("{part}.{}", parameter.name);
                let tensor = tensors
                    .get(&name)
                    .filter(|tensor| tensor.data_type == DataType::F32 && tensor.shape == parameter.shape)
                    .ok_or(Error::OtherModel { step, what: name })?;
                values.extend(tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
        }
        if tensors.len() != layout.len() * PARTS.len() {
            return Err(Error::OtherModel { step, what: "a tensor of this model".to_owned() });
        }
        let [parameters, first, second] = parts;
        let skipped = info.metadata.get(SKIPPED).map_or(Ok(0), |text| text.parse());
        let skipped = skipped.map_err(|_| Error::OtherModel { step, what: SKIPPED.to_owned() })?;
        let place = take_place(&mut info.metadata.clone());
        Ok(State { step, skipped, place, parameters, adam: Adam { first, second } })
    }
}

/// Takes the place in the data out of a checkpoint's notes.
pub(crate) fn take_place(notes: &mut BTreeMap<String, String>) -> Option<Place> {
    let (state, global_batch) = (notes.remove(DATA), notes.remove(GLOBAL_BATCH));
    Some(Place { state: state?, global_batch: global_batch?.parse().ok()? })
}
