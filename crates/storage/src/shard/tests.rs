//! Hostile and broken shard files: a named error each, never a panic (A-10).

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::Tensor;
use crate::reading::{Origin, Piece, read_pieces};
use crate::staged::Staged;

fn tensor(name: &str, data: &[u8]) -> Tensor {
    Tensor { name: name.to_owned(), data_type: DataType::U8, shape: vec![data.len()], data: data.to_vec() }
}

/// The header of a file with these tensors, and the file's record.
fn encode(rank: u32, tensors: &[Tensor]) -> Result<(Vec<u8>, ShardRecord), Error> {
    let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::as_view).collect();
    let views: Vec<&TensorView<'_>> = views.iter().collect();
    Ok((lay_out(&views)?.0, Staged::copy(&views, &Arc::default())?.records(rank).remove(0)))
}

/// A record of two tensors of four bytes, whatever the file says.
fn record(header: &[u8], file_bytes: usize) -> ShardRecord {
    let tensors = [tensor("a", &[1, 2, 3, 4]), tensor("b", &[5, 6, 7, 8])];
    let (_, record) = encode(0, &tensors).expect("two small tensors");
    ShardRecord { bytes: file_bytes as u64, header_blake3: Digest::of(header), ..record }
}

/// Opens a file with this JSON header and eight bytes of data, which the manifest would call good.
fn open_with_header(json: &str) -> Result<usize, Error> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    let record = record(&bytes, bytes.len() + 8);
    bytes.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    open_bytes(&bytes, &record)
}

fn open_bytes(bytes: &[u8], record: &ShardRecord) -> Result<usize, Error> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path: PathBuf = folder.path().join("shard");
    std::fs::write(&path, bytes).expect("a small file");
    let shard = Shard::open(&path, record)?;
    let pieces: Vec<Piece> = (0..shard.len()).map(|tensor| Piece { shard: 0, tensor, is_checked: true }).collect();
    let good: Result<Vec<()>, Error> =
        read_pieces(&[shard], &pieces, Origin::Disk, Vec::new(), |_, _, _| ()).into_iter().collect();
    good.map(|tensors| tensors.len())
}

fn check_refused(json: &str, why: &str) {
    let error = open_with_header(json).expect_err(json).to_string();
    assert!(error.contains(why), "{json}: {error:?} does not say {why:?}");
}

const A: &str = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;

#[test]
fn a_sound_header_is_read_in_any_order_and_with_foreign_metadata() {
    let b = r#""b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}"#;
    for json in
        [format!("{{{A},{b}}}"), format!("{{{b},{A}}}   "), format!(r#"{{"__metadata__":{{"x":"y"}},{A},{b}}}"#)]
    {
        assert_eq!(open_with_header(&json).map_err(|error| error.to_string()), Ok(2), "{json}");
    }
}

#[test]
fn a_header_that_means_the_same_but_was_not_written_so_is_found() {
    let b = r#""b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}"#;
    let json = format!("{{{A},{b}}}");
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(format!("{{{b},{A}}}").as_bytes());
    bytes.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let record = record(b"another header", bytes.len());
    assert!(matches!(open_bytes(&bytes, &record), Err(Error::Corrupt { flaw: Flaw::Hash, tensor: None, .. })));
}

/// Proves A-10 for shard files.
#[test]
fn hostile_headers_get_a_named_error() {
    let with_b = |b: &str| format!("{{{A},\"b\":{b}}}");
    check_refused("[]", "not a JSON object");
    check_refused("\u{0}\u{1}", "not a JSON object");
    check_refused(&"[".repeat(100_000), "not a JSON object");
    check_refused(&format!("{{{A}}}"), "other tensors");
    check_refused(&format!("{{{A},\"c\":{{}}}}"), "lacks a tensor");
    check_refused(&with_b("7"), "declaration is malformed");
    check_refused(&with_b(r#"{"dtype":"U8","shape":[-4],"data_offsets":[4,8]}"#), "declaration is malformed");
    check_refused(&with_b(r#"{"dtype":"U9","shape":[4],"data_offsets":[4,8]}"#), "declaration is malformed");
    check_refused(&with_b(r#"{"dtype":"I8","shape":[4],"data_offsets":[4,8]}"#), "another type or shape");
    check_refused(&with_b(r#"{"dtype":"U8","shape":[4],"data_offsets":[8,4]}"#), "ends before it starts");
    check_refused(&with_b(r#"{"dtype":"U8","shape":[4],"data_offsets":[4,9]}"#), "don't fit its type");
    check_refused(&with_b(r#"{"dtype":"U8","shape":[4],"data_offsets":[3,7]}"#), "overlap");
    check_refused(&with_b(r#"{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#), "overlap");
    check_refused(&with_b(r#"{"dtype":"U8","shape":[4],"data_offsets":[5,9]}"#), "gap");
    let far = format!("[{},{}]", u64::MAX - 4, u64::MAX);
    check_refused(&with_b(&format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{far}}}"#)), "gap");
}

#[test]
fn headers_that_claim_more_than_the_file_holds_are_refused() {
    let check = |claimed: u64, tail: &[u8], why: &str| {
        let mut bytes = claimed.to_le_bytes().to_vec();
        bytes.extend_from_slice(tail);
        let error = open_bytes(&bytes, &record(&bytes, bytes.len())).expect_err(why).to_string();
        assert!(error.contains(why), "{error:?} does not say {why:?}");
    };
    check(u64::MAX, b"{}", "longer than 100 MB");
    check(100_000_000, b"{}", "longer than the file");
    check(3, b"{}", "longer than the file");
    let short = open_bytes(b"abc", &record(b"abc", 3)).expect_err("three bytes").to_string();
    assert!(short.contains("too short"), "{short}");
}

#[test]
fn a_manifest_with_absurd_shapes_is_refused_without_allocating() {
    let (header, mut record) = encode(0, &[tensor("a", &[1]), tensor("b", &[])]).expect("two small tensors");
    record.tensors[0].shape = vec![usize::MAX];
    let mut bytes = header;
    bytes.push(1);
    assert!(matches!(open_bytes(&bytes, &record), Err(Error::Corrupt { flaw: Flaw::Malformed { .. }, .. })));
}
