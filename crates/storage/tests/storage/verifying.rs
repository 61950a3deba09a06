//! Reading tensors straight to where they belong, whatever of their files is cached, and the ways of checking them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_storage::{DataType, Error, Options, PartOf, Role, Snapshot, Step, TensorView, Verify, Wanted};
use rustix::fs::{Advice, fadvise};

use crate::{note, open};

/// Rows and columns of a matrix of bytes that takes several segments, and whose parts begin at odd places.
const SHAPE: [usize; 2] = [1_027, 20_011];
const WAIT: Duration = Duration::from_secs(60);

fn bytes() -> Vec<u8> {
    (0..SHAPE[0] * SHAPE[1]).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
}

/// Saves the matrix cut into two parts by rows.
fn save_in_rows(folder: &Path, data: &[u8]) {
    let cut = 300;
    let save = |rank: u32| {
        let role = Role::Writer { rank, world_size: 2, tag: 1 };
        let store = open(folder, Options { role, ..Options::default() });
        let (rows, from) = if rank == 0 { (cut, 0) } else { (SHAPE[0] - cut, cut) };
        let (shape, offsets) = ([rows, SHAPE[1]], [from, 0]);
        let part_of = Some(PartOf { shape: &SHAPE, offsets: &offsets });
        let data = &data[from * SHAPE[1]..(from + rows) * SHAPE[1]];
        let part = TensorView { name: "w", data_type: DataType::U8, shape: &shape, data, part_of };
        store.save(Step(1), &[part], &note()).unwrap().wait().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| save(0));
        save(1);
    });
}

fn save_one(folder: &Path, data: &[u8]) -> PathBuf {
    let store = open(folder, Options::default());
    let tensor = TensorView { name: "w", data_type: DataType::U8, shape: &SHAPE, data, part_of: None };
    store.save(Step(1), &[tensor], &note()).unwrap().wait().unwrap();
    folder.join("step-0000000001/shard-00000-of-00001.safetensors")
}

fn snapshot(folder: &Path) -> Snapshot {
    open(folder, Options::reader()).open_step(Step(1)).unwrap()
}

/// Reads a box of the matrix.
fn read(snapshot: &Snapshot, offsets: [usize; 2], shape: [usize; 2], verify: &Verify) -> Result<Vec<u8>, Error> {
    let mut data = vec![0; shape[0] * shape[1]];
    let wanted = Wanted { name: "w", data_type: DataType::U8, offsets: &offsets, shape: &shape, data: &mut data };
    let checking = snapshot.read_verifying(&mut [wanted], verify)?;
    if let Some(checking) = checking {
        checking.wait_at_most(WAIT).expect("a minute is enough")?;
    }
    Ok(data)
}

fn read_all(snapshot: &Snapshot, verify: &Verify) -> Result<Vec<u8>, Error> {
    read(snapshot, [0, 0], SHAPE, verify)
}

fn flip(file: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Has the kernel keep only some of a file: every second stretch of a length.
fn cache_some(file: &Path, stretch: usize) {
    let bytes = std::fs::read(file).unwrap().len();
    let file = File::open(file).unwrap();
    for at in (0..bytes).step_by(2 * stretch) {
        fadvise(&file, at as u64, std::num::NonZeroU64::new(stretch as u64), Advice::DontNeed).unwrap();
    }
}

#[test]
fn bytes_come_back_whatever_of_their_files_is_cached_and_however_they_are_cut() {
    let data = bytes();
    for is_cut in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        if is_cut {
            save_in_rows(folder.path(), &data)
        } else {
            drop(save_one(folder.path(), &data))
        }
        let snapshot = snapshot(folder.path());
        let files: Vec<PathBuf> = std::fs::read_dir(folder.path().join("step-0000000001"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
            .collect();
        for stretch in [1 << 30, 1 << 20, 4_096 * 37] {
            files.iter().for_each(|file| cache_some(file, stretch));
            assert!(read_all(&snapshot, &Verify::Always).unwrap() == data, "stretches of {stretch} bytes");
            let (offsets, shape) = ([299, 7], [400, 20_000]);
            let part = read(&snapshot, offsets, shape, &Verify::Always).unwrap();
            let row = |row: usize| &data[(offsets[0] + row) * SHAPE[1] + offsets[1]..][..shape[1]];
            assert!((0..shape[0]).all(|at| part[at * shape[1]..][..shape[1]] == *row(at)), "{stretch}");
        }
    }
}

/// Proves A-6 for each way of verifying: a read that counts as checked never has a byte that wasn't saved.
#[test]
fn each_way_of_verifying_finds_a_flipped_bit() {
    let marks = tempfile::tempdir().unwrap();
    for verify in [Verify::Always, Verify::First(marks.path().join("marks")), Verify::Later] {
        let folder = tempfile::tempdir().unwrap();
        let file = save_one(folder.path(), &bytes());
        let snapshot = snapshot(folder.path());
        assert!(read_all(&snapshot, &verify).is_ok());
        flip(&file, 15_000_000);
        let error = read_all(&snapshot, &verify).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { tensor: Some(tensor), .. } if tensor == "w"), "{verify:?}: {error}");
    }
}

#[test]
fn a_check_in_the_background_goes_on_when_the_checkpoint_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let data = bytes();
    save_one(folder.path(), &data);
    let snapshot = snapshot(folder.path());
    let mut found = vec![0; data.len()];
    let wanted = Wanted { name: "w", data_type: DataType::U8, offsets: &[0, 0], shape: &SHAPE, data: &mut found };
    let checking = snapshot.read_verifying(&mut [wanted], &Verify::Later).unwrap().unwrap();
    std::fs::remove_dir_all(folder.path().join("step-0000000001")).unwrap();
    assert!(checking.wait_at_most(WAIT).unwrap().is_ok());
    assert!(found == data);
}

#[test]
fn marks_that_others_may_write_or_that_are_torn_are_not_believed() {
    let (folder, marks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_one(folder.path(), &bytes());
    let snapshot = snapshot(folder.path());
    let verify = Verify::First(marks.path().to_owned());
    let count = || std::fs::read_dir(marks.path()).unwrap().count();
    std::fs::set_permissions(marks.path(), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(read_all(&snapshot, &verify).is_ok() && count() == 0, "anybody may write there");
    std::fs::set_permissions(marks.path(), PermissionsExt::from_mode(0o700)).unwrap();
    assert!(read_all(&snapshot, &verify).is_ok() && count() == 1);
    let mark = std::fs::read_dir(marks.path()).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&mark).unwrap();
    std::fs::write(&mark, &whole[1..]).unwrap();
    assert!(read_all(&snapshot, &verify).is_ok());
    assert_eq!(std::fs::read(&mark).unwrap(), whole, "it was read and noted again");
}
