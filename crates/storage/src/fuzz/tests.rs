//! The fuzzers' targets over seeded mutations of what is sound, so that every run of the tests tries them.

use std::collections::BTreeMap;

use gangline_compression::{Coder, Effort, Element, Source, encode_tensor};

use super::*;
use crate::NoteType;
use crate::lineage::{Line, Lineage, Moment};
use crate::manifest::{Manifest, seal};
use crate::region::WholeRecord;
use crate::shard::lay_out;
use crate::{DataType, Tensor, TensorView};

/// Mutations of each sound input.
const ROUNDS: usize = 20_000;

/// Draws numbers from a seed: splitmix64 (Steele, Lea and Flood 2014).
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((word ^ (word >> 31)) % limit as u64).unwrap()
    }

    /// Changes a byte or a few: to anything, to a digit, away, or twice.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[at] = u8::try_from(self.below(256)).unwrap(),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, bytes[at]),
                // Most of what is written as text is digits.
                _ => bytes[at] = b"0123456789abcdef"[self.below(16)],
            }
        }
    }
}

/// Runs a target on a sound input and on mutations of it.
fn check(target: fn(&[u8]), sound: &[u8], seed: u64) {
    target(b"");
    target(sound);
    let mut draw = Draw(seed);
    for _ in 0..ROUNDS {
        let mut mutated = sound.to_vec();
        draw.mutate(&mut mutated);
        target(&mutated);
    }
}

fn tensor(name: &str, shape: &[usize]) -> Tensor {
    let data = vec![7; shape.iter().product::<usize>() * 2];
    Tensor { name: name.to_owned(), data_type: DataType::F16, shape: shape.to_vec(), data }
}

/// A shard of a whole tensor and a part of one.
fn shard() -> ShardRecord {
    let record = |name: &str, shape: &[usize], part_of| TensorRecord {
        name: name.to_owned(),
        data_type: DataType::F16,
        shape: shape.to_vec(),
        blake3: Digest::of(name.as_bytes()),
        part_of,
    };
    let whole = |at| Some(WholeRecord { shape: vec![4, 3], offsets: vec![at, 0] });
    let tensors = vec![record("a", &[5], None), record("b", &[2, 3], whole(0))];
    ShardRecord { rank: 0, bytes: 60, header_blake3: Digest::of(b"header"), tensors }
}

/// A sealed text without its seal, as [`seal_text`] takes it.
fn body(sealed: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(sealed).unwrap();
    text.rsplit_once(",\"checksum\"").unwrap().0.as_bytes().to_vec()
}

#[test]
fn no_mutation_of_a_safetensors_file_makes_a_panic() {
    let tensors = [tensor("a", &[3, 5]), tensor("b", &[]), tensor("empty", &[0])];
    let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::as_view).collect();
    let (header, _) = lay_out(&views.iter().collect::<Vec<_>>()).unwrap();
    // Without the padding most mutations hit something.
    let json = String::from_utf8(header[8..].to_vec()).unwrap();
    let json = json.trim_end();
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    file.resize(file.len() + 32, 7);
    check(shard_header, &file, 1);
}

#[test]
fn no_mutation_of_a_manifest_or_an_index_makes_a_panic() {
    let mut other = shard();
    other.rank = 1;
    other.tensors = vec![other.tensors[1].clone()];
    other.tensors[0].part_of = Some(WholeRecord { shape: vec![4, 3], offsets: vec![2, 0] });
    let note = BTreeMap::from([("loss".to_owned(), "1.5".to_owned())]);
    let types = BTreeMap::from([("loss".to_owned(), NoteType::Float)]);
    let moment = Moment { order: 7, step: 2 };
    let line = Line::begin("run", Moment { order: 8, step: STEP }, Some((&Line::default(), moment)));
    let lineage = Lineage { run: "run".to_owned(), saved_at: 6, order: 8, parent: Some(2), line };
    let sound = Manifest::over(Step(STEP), 3, vec![shard(), other], (note, types), Some(lineage));
    let sealed = seal(&sound);
    assert_eq!(parse_manifest(&sealed, STEP).as_ref(), Ok(&sound));
    check(manifest, &sealed, 2);
    check(manifest, &body(sealed), 3);
    let magic = INDEX_MAGIC.to_owned();
    let (plan_blake3, shard) = (Digest::of(b"plan"), shard());
    let (turn, alike, more) = (Some(1), Some("0123456789abcdef".to_owned()), Vec::new());
    let sound =
        ShardIndex { magic, version: 2, step: STEP, writer: 3, world_size: 2, plan_blake3, turn, alike, shard, more };
    check(index, &body(seal(&sound)), 4);
    let refused = br#"{"magic":"gangline-refusal","version":1,"step":2,"writer":3,"world_size":2,"turn":1,"reason":{"kind":"timeout","rank":1,"waited_milliseconds":5}"#;
    assert!(crate::refusal::parse_error(&crate::manifest::seal_text(refused.to_vec()), Step(STEP)).is_some());
    check(index, refused, 5);
}

#[test]
fn no_mutation_of_a_staged_saves_note_or_a_lease_makes_a_panic() {
    let note = br#"{"magic":"gangline-staged-save","version":1,"root":"/r","rank":0,"world_size":1,"tag":3,"step":2,"metadata":{},"#;
    let rest = format!(
        r#""plan_blake3":"{}","header_bytes":4096,"tensors":[{{"name":"a","data_type":"F16","shape":[5],"range":{{"start":0,"end":10}},"part_of":null}}]"#,
        Digest::of(b"plan")
    );
    let sound = [note, rest.as_bytes()].concat();
    let staged = crate::staging::parse_note(&seal_text(sound.clone()), COPY_BYTES);
    assert_eq!(staged.map(|staged| staged.bytes()), Some(4_106));
    check(staged_note, &sound, 9);
    // A rank with two files: the second begins at a page.
    let more = br#","more":[{"header_bytes":100,"tensors":[{"name":"b","data_type":"U8","shape":[3],"range":{"start":0,"end":3},"part_of":null}]}]"#;
    let two = [&sound[..], more].concat();
    let staged = crate::staging::parse_note(&seal_text(two.clone()), COPY_BYTES);
    assert!(staged.is_none(), "two pages have no room for a file of two and another");
    let small = String::from_utf8(two).unwrap().replace("\"header_bytes\":4096", "\"header_bytes\":40").into_bytes();
    let staged = crate::staging::parse_note(&seal_text(small.clone()), COPY_BYTES).unwrap();
    assert_eq!(
        staged.images().map(|image| (image.padded.len(), image.bytes)).collect::<Vec<_>>(),
        [(4_096, 50), (4_096, 103)]
    );
    check(staged_note, &small, 13);
    let owner = r#"{"host":"a","machine":"b 4026531836","process":17,"began":"1234"}"#;
    let sound = format!(
        r#"{{"magic":"gangline-archive-lease","version":1,"owner":{owner},"purpose":"push","taken_at":5,"renewed_at":6"#
    );
    assert!(crate::archive::parse_lease(&seal_text(sound.clone().into_bytes())));
    check(lease, sound.as_bytes(), 10);
}

#[test]
fn no_mutation_of_a_coded_tensor_makes_a_panic() {
    let raw: Vec<u8> = (0..3_000_u16).flat_map(|at| [at.to_le_bytes()[0].wrapping_mul(7), 0x3c]).collect();
    let base = vec![0x3c; raw.len()];
    for (has_base, seed) in [(false, 5), (true, 6)] {
        let mut input = u16::try_from(raw.len()).unwrap().to_le_bytes().to_vec();
        input[1] |= if has_base { 0x80 } else { 0 };
        let source = Source { raw: &raw, base: has_base.then_some(&base), columns: 0 };
        let mut coder = Coder::new(Element::Bf16, Effort::Tiering);
        encode_tensor(&mut coder, source, &mut input).unwrap();
        check(coded_tensor, &input, seed);
    }
}

#[test]
fn no_mutation_of_an_index_leads_out_of_its_folder() {
    let sound = br#"{"metadata":{"total_size":1},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    assert_eq!(parse_index(sound).map(|files| files.len()), Ok(2));
    check(foreign_index, sound, 7);
    let mut sly = sound.to_vec();
    sly.splice(47..47, *b"../");
    assert!(parse_index(&sly).is_err());
    check(foreign_index, &sly, 8);
}
