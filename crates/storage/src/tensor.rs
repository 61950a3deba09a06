//! Tensors at the store's interface: named, typed, shaped bytes; checked before anything is copied.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::within;
use crate::region::Region;

/// The most tensors in one checkpoint. `cargo xtask bench tensors` measures the cost of this many.
pub const TENSORS_MAX: usize = 4_000_000;
/// The longest tensor name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// The most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 16;

/// The type of a tensor's elements, by safetensors' names. Elements are little-endian; elements smaller than
/// a byte are packed in order, several to one byte or to a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum DataType {
    F64,
    F32,
    F16,
    Bf16,
    #[serde(rename = "F8_E4M3")]
    F8E4m3,
    #[serde(rename = "F8_E5M2")]
    F8E5m2,
    #[serde(rename = "F8_E8M0")]
    F8E8m0,
    #[serde(rename = "F8_E4M3FNUZ")]
    F8E4m3Fnuz,
    #[serde(rename = "F8_E5M2FNUZ")]
    F8E5m2Fnuz,
    #[serde(rename = "F6_E2M3")]
    F6E2m3,
    #[serde(rename = "F6_E3M2")]
    F6E3m2,
    F4,
    C64,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl DataType {
    /// Returns the bytes of one element; for packed types, the bytes of the smallest group of elements that
    /// fills whole bytes ([`DataType::together`]).
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DataType::F64 | DataType::I64 | DataType::U64 | DataType::C64 => 8,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F6E2m3 | DataType::F6E3m2 => 3,
            DataType::F16 | DataType::Bf16 | DataType::I16 | DataType::U16 => 2,
            DataType::F8E4m3 | DataType::F8E5m2 | DataType::F8E8m0 | DataType::F8E4m3Fnuz | DataType::F8E5m2Fnuz => 1,
            DataType::F4 | DataType::I8 | DataType::U8 | DataType::Bool => 1,
        }
    }

    /// Returns the number of elements in [`DataType::size`] bytes: one, except for packed types.
    #[must_use]
    pub const fn together(self) -> usize {
        match self {
            DataType::F6E2m3 | DataType::F6E3m2 => 4,
            DataType::F4 => 2,
            _ => 1,
        }
    }

    /// Returns the alignment of an element in files, in bytes.
    pub(crate) const fn alignment(self) -> usize {
        if self.together() > 1 { 1 } else { self.size() }
    }

    /// Reports whether programs that know format versions up to 2 only know this type.
    pub(crate) const fn is_of_version_2(self) -> bool {
        !matches!(
            self,
            DataType::F8E8m0
                | DataType::F8E4m3Fnuz
                | DataType::F8E5m2Fnuz
                | DataType::F6E2m3
                | DataType::F6E3m2
                | DataType::F4
                | DataType::C64
        )
    }

    /// Returns the type's name in files and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DataType::F64 => "F64",
            DataType::F32 => "F32",
            DataType::F16 => "F16",
            DataType::Bf16 => "BF16",
            DataType::F8E4m3 => "F8_E4M3",
            DataType::F8E5m2 => "F8_E5M2",
            DataType::F8E8m0 => "F8_E8M0",
            DataType::F8E4m3Fnuz => "F8_E4M3FNUZ",
            DataType::F8E5m2Fnuz => "F8_E5M2FNUZ",
            DataType::F6E2m3 => "F6_E2M3",
            DataType::F6E3m2 => "F6_E3M2",
            DataType::F4 => "F4",
            DataType::C64 => "C64",
            DataType::I64 => "I64",
            DataType::I32 => "I32",
            DataType::I16 => "I16",
            DataType::I8 => "I8",
            DataType::U64 => "U64",
            DataType::U32 => "U32",
            DataType::U16 => "U16",
            DataType::U8 => "U8",
            DataType::Bool => "BOOL",
        }
    }
}

/// A tensor to be saved, borrowed from its owner.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The tensor's name, unique in the checkpoint. Names are never used as paths.
    pub name: &'a str,
    /// The type of its elements.
    pub data_type: DataType,
    /// Its dimensions; none for a scalar.
    pub shape: &'a [usize],
    /// Its elements, little-endian, in row-major order.
    pub data: &'a [u8],
    /// Set if this is a part of a sharded tensor. Without it the tensor is whole: every rank of the gang
    /// passes the same tensor, and one of them writes it. With it the part is this rank's own: this rank
    /// writes it, and may hold at most one part of a tensor.
    pub part_of: Option<PartOf<'a>>,
}

/// The whole tensor of a part, and the part's offset in it. The parts of all ranks must cover the tensor,
/// each element once; otherwise rank 0 refuses to commit.
#[derive(Clone, Copy, Debug)]
pub struct PartOf<'a> {
    /// The whole tensor's dimensions.
    pub shape: &'a [usize],
    /// The part's first element, one index for each dimension.
    pub offsets: &'a [usize],
}

/// A loaded tensor, or a copy waiting to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, unique in the checkpoint.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// Its dimensions; none for a scalar.
    pub shape: Vec<usize>,
    /// Its elements, little-endian, in row-major order.
    pub data: Vec<u8>,
}

impl Tensor {
    /// Borrows the tensor as a view.
    #[must_use]
    pub fn as_view(&self) -> TensorView<'_> {
        TensorView { name: &self.name, data_type: self.data_type, shape: &self.shape, data: &self.data, part_of: None }
    }
}

/// Returns the bytes of a tensor of this type and shape; none if the count overflows or isn't a whole number.
pub(crate) fn byte_count(data_type: DataType, shape: &[usize]) -> Option<u64> {
    let elements = shape.iter().try_fold(1_usize, |product, dimension| product.checked_mul(*dimension))?;
    let groups = elements.is_multiple_of(data_type.together()).then(|| elements / data_type.together())?;
    groups.checked_mul(data_type.size()).map(|bytes| bytes as u64)
}

/// Reports whether each row of a box in a tensor of this shape begins and ends at a byte boundary.
pub(crate) fn is_of_whole_bytes(data_type: DataType, region: &Region, shape: &[usize]) -> bool {
    let together = data_type.together();
    let last = |numbers: &[usize]| numbers.last().is_some_and(|number| number.is_multiple_of(together));
    together == 1 || *region == Region::whole(shape) || last(shape) && last(&region.shape) && last(&region.offsets)
}

/// Returns the reason why a tensor can't have this name.
pub(crate) fn name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("the name is empty")
    } else if name.len() > NAME_BYTES_MAX {
        Some("the name is longer than 512 bytes")
    } else if name.chars().any(char::is_control) {
        Some("the name has a control character")
    } else if name == crate::shard::METADATA {
        Some("the name is reserved by safetensors")
    } else {
        None
    }
}

/// Checks tensors before they are saved.
pub(crate) fn check_tensors(tensors: &[TensorView<'_>]) -> Result<(), Error> {
    within("tensors", tensors.len(), TENSORS_MAX)?;
    let mut names = HashSet::with_capacity(tensors.len());
    for tensor in tensors {
        let refused = |why| Err(Error::InvalidTensor { tensor: tensor.name.chars().take(64).collect(), why });
        if let Some(why) = name_fault(tensor.name) {
            return refused(why);
        }
        if tensor.shape.len() > DIMENSIONS_MAX {
            return refused("it has more than 16 dimensions");
        }
        if byte_count(tensor.data_type, tensor.shape) != Some(tensor.data.len() as u64) {
            return refused("its bytes don't fit its type and shape");
        }
        if !names.insert(tensor.name) {
            return refused("the name is there twice");
        }
        let is_misplaced = |whole: &PartOf<'_>| {
            let part = Region { offsets: whole.offsets.to_vec(), shape: tensor.shape.to_vec() };
            !part.is_within(whole.shape) || byte_count(tensor.data_type, whole.shape).is_none()
        };
        if tensor.part_of.as_ref().is_some_and(is_misplaced) {
            return refused("the part isn't within the whole tensor's shape");
        }
        let is_split = |whole: &PartOf<'_>| {
            let part = Region { offsets: whole.offsets.to_vec(), shape: tensor.shape.to_vec() };
            !is_of_whole_bytes(tensor.data_type, &part, whole.shape)
        };
        if tensor.part_of.as_ref().is_some_and(is_split) {
            return refused("the part begins or ends within a byte");
        }
    }
    Ok(())
}

/// Assigns replicated tensors to the ranks that write them: largest first (by name among equals), each to the
/// rank with the fewest bytes so far (the lowest among equals). Every rank computes the same assignment.
/// Returns the indices that `rank` writes: first its own parts, then the tensors assigned to it.
pub(crate) fn share(tensors: &[TensorView<'_>], rank: u32, world_size: u32) -> Vec<usize> {
    let (mut mine, mut order): (Vec<usize>, Vec<usize>) =
        (0..tensors.len()).partition(|index| tensors[*index].part_of.is_some());
    order.sort_by_key(|index| (std::cmp::Reverse(tensors[*index].data.len()), tensors[*index].name));
    let mut loads: BTreeSet<(u64, u32)> = (0..world_size).map(|rank| (0, rank)).collect();
    for index in order {
        let (load, to) = loads.pop_first().expect("a gang has at least one rank");
        loads.insert((load + tensors[index].data.len() as u64, to));
        if to == rank {
            mine.push(index);
        }
    }
    mine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(name: &'a str, shape: &'a [usize], data: &'a [u8]) -> TensorView<'a> {
        TensorView { name, data_type: DataType::U8, shape, data, part_of: None }
    }

    #[test]
    fn tensors_that_contradict_themselves_are_refused() {
        let check = |tensors: &[TensorView<'_>], why: &str| {
            let error = check_tensors(tensors).expect_err("a refusal").to_string();
            assert!(error.contains(why), "{error:?} does not say {why:?}");
        };
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        check(&[view("", &[1], &[0])], "empty");
        check(&[view(&long, &[1], &[0])], "longer");
        check(&[view("a\nb", &[1], &[0])], "control");
        check(&[view("__metadata__", &[1], &[0])], "reserved");
        check(&[view("a", &[2], &[0])], "bytes");
        check(&[view("a", &[usize::MAX, 2], &[0])], "bytes");
        check(&[view("a", &[1; 17], &[0])], "dimensions");
        check(&[view("a", &[1], &[0]), view("a", &[1], &[0])], "twice");
        let part = |offsets| TensorView { part_of: Some(PartOf { shape: &[4], offsets }), ..view("a", &[2], &[0, 0]) };
        check(&[part(&[3])], "within");
        check(&[part(&[])], "within");
        check(&[part(&[usize::MAX])], "within");
        assert!(check_tensors(&[part(&[2])]).is_ok());
        let many = vec![view("a", &[1], &[0]); TENSORS_MAX + 1];
        check(&many, "accept tensors: 4000001 is more than 4000000");
        assert!(check_tensors(&[view("../../etc/passwd", &[1], &[0]), view("b", &[], &[0])]).is_ok());
    }

    #[test]
    fn ranks_share_the_bytes_evenly_and_every_tensor_once() {
        let data = [0; 64];
        let names: Vec<String> = (0..20).map(|i| format!("t{i}")).collect();
        let shapes: Vec<[usize; 1]> = (0..20).map(|i| [i * 3 % 41]).collect();
        let tensors: Vec<_> = (0..20).map(|i| view(&names[i], &shapes[i], &data[..shapes[i][0]])).collect();
        let shares: Vec<Vec<usize>> = (0..3).map(|rank| share(&tensors, rank, 3)).collect();
        let loads: Vec<usize> = shares.iter().map(|s| s.iter().map(|i| tensors[*i].data.len()).sum()).collect();
        let mut all: Vec<usize> = shares.concat();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        assert!(loads.iter().max() <= loads.iter().min().map(|least| least + 41).as_ref(), "{loads:?}");
    }
}
