//! Files and folders in places that others can write to, such as `/dev/shm` and `/tmp`, where another user
//! may have created anything under any name: a FIFO that blocks, a link that leads elsewhere, a folder that
//! isn't to be trusted. So a path that is opened must not be a link, never blocks, and must belong to this
//! user; and a folder that is made has a name that nobody can guess.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::process::geteuid;

/// Random bytes in a name, so that nobody can create all possible folders first.
const DRAWN_BYTES: usize = 8;

/// Makes a folder that only this user may enter, named `prefix` and a random part.
///
/// # Errors
/// If it can't be made; the path is in the error.
pub(crate) fn make_folder(parent: &Path, prefix: &str) -> io::Result<PathBuf> {
    let mut drawn = [0; DRAWN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut drawn)?;
    let path = parent.join(format!("{prefix}{:016x}", u64::from_ne_bytes(drawn)));
    make_folder_at(&path)?;
    Ok(path)
}

/// Makes a folder that only this user may enter.
///
/// # Errors
/// If it can't be made, or exists already: then the error names its owner.
pub(crate) fn make_folder_at(path: &Path) -> io::Result<()> {
    let named = |error: io::Error| {
        let owner = path.symlink_metadata().map(|found| format!(" (it belongs to user {})", found.uid()));
        let owner = owner.ok().filter(|_| error.kind() == io::ErrorKind::AlreadyExists).unwrap_or_default();
        io::Error::new(error.kind(), format!("make {}{owner}: {error}", path.display()))
    };
    match DirBuilder::new().mode(0o700).create(path) {
        // The umask may have removed permissions.
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(named),
        // Platform errors are recognised by the system's own error.
        Err(error) if crate::trouble::is_platforms(&error) => Err(error),
        Err(error) => Err(named(error)),
    }
}

/// Opens this user's file `name` in this user's `folder` for reading.
///
/// # Errors
/// If either doesn't exist, has the wrong type, or belongs to another user.
pub(crate) fn open_own(folder: &Path, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let directory = File::from(open(folder, flags | OFlags::DIRECTORY, Mode::empty())?);
    check_own(&directory, folder)?;
    let file = File::from(openat(&directory, name, flags, Mode::empty())?);
    let path = folder.join(name);
    check_own(&file, &path)?;
    check_regular(&file, &path)?;
    Ok(file)
}

/// Opens any user's file for reading, without blocking on one that isn't a regular file.
///
/// # Errors
/// If it can't be opened, or isn't a regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    check_regular(&file, path)?;
    Ok(file)
}

fn check_own(file: &File, path: &Path) -> io::Result<()> {
    let owner = file.metadata()?.uid();
    if owner == geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} belongs to user {owner}", path.display())))
}

fn check_regular(file: &File, path: &Path) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let what = if kind.is_fifo() { "a FIFO" } else { "no regular file" };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is {what}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::process::Command;

    use super::*;

    /// Proves A-10: opening never blocks on what takes a file's place.
    #[test]
    fn a_fifo_a_link_and_anothers_file_are_refused_at_once_and_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        assert!(Command::new("mkfifo").arg(path("fifo")).status().is_ok_and(|status| status.success()));
        std::fs::write(path("file"), "text").expect("a file");
        symlink(path("file"), path("link")).expect("a link");
        let refused = |name: &str| open_own(folder.path(), name).map(|_| ()).expect_err("it is refused").to_string();
        assert!(refused("fifo").contains("fifo is a FIFO"), "{}", refused("fifo"));
        refused("link");
        assert!(open_regular(&path("fifo")).is_err() && open_regular(&path("link")).is_ok());
        open_own(folder.path(), "file").expect("it is ours");
        if chown(path("file"), Some(65_534), None).is_ok() {
            assert!(refused("file").contains("file belongs to user 65534"));
            chown(folder.path(), Some(65_534), None).expect("it was so before");
            assert!(refused("file").contains(&format!("{} belongs to user 65534", folder.path().display())));
        }
    }

    #[test]
    fn folders_have_names_of_their_own_and_one_that_is_there_is_told_with_its_owner() {
        let parent = tempfile::tempdir().expect("a folder");
        let made = [(); 2].map(|()| make_folder(parent.path(), "gangline-").expect("a folder"));
        assert_ne!(made[0], made[1]);
        assert_eq!(made[0].metadata().expect("it is there").mode() & 0o777, 0o700);
        let taken = make_folder_at(&made[0]).expect_err("it is there").to_string();
        assert!(taken.contains(&format!("{} (it belongs to user", made[0].display())), "{taken}");
    }
}
