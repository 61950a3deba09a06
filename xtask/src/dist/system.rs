//! What an installed system has of Gangline, and where: below one folder, from which tarballs and packages are made.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command::{output, root, run};

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Files of the tree, and where a system has them.
const FILES: [(&str, &str); 6] = [
    ("packaging/gangline.service", "usr/lib/systemd/system/gangline.service"),
    ("packaging/sysusers.conf", "usr/lib/sysusers.d/gangline.conf"),
    ("packaging/gangline.toml", "etc/gangline/gangline.toml"),
    ("LICENSE", "usr/share/doc/gangline/copyright"),
    ("README.md", "usr/share/doc/gangline/README.md"),
    ("CHANGELOG.md", "usr/share/doc/gangline/CHANGELOG.md"),
];
/// Where a system looks for each shell's completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/gangline"),
    ("zsh", "usr/share/zsh/vendor-completions/_gangline"),
    ("fish", "usr/share/fish/vendor_completions.d/gangline.fish"),
];

/// Puts everything where a system has it, below `system`. `native` runs here and writes manual pages and completions.
pub(super) fn lay_out(system: &Path, binary: &Path, native: &Path) -> anyhow::Result<()> {
    let root = root()?;
    put(&fs::read(binary)?, &system.join("usr/bin/gangline"), 0o755)?;
    for (from, to) in FILES {
        put(&fs::read(root.join(from)).with_context(|| format!("read {from}"))?, &system.join(to), 0o644)?;
    }
    for (shell, to) in COMPLETIONS {
        put(output(Command::new(native).args(["completions", shell]))?.as_bytes(), &system.join(to), 0o644)?;
    }
    let pages = system.join("usr/share/man/man1");
    run(Command::new(native).arg("man-pages").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        // Debian's policy asks for compressed pages, without a time in them.
        run(Command::new("gzip").args(["-9n"]).arg(page?.path()))?;
    }
    Ok(())
}

pub(super) fn put(content: &[u8], to: &Path, mode: u32) -> anyhow::Result<()> {
    fs::create_dir_all(to.parent().context("a path below the root")?)?;
    fs::write(to, content).with_context(|| format!("write {}", to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Packs the system's files into a tarball, the same bytes for the same files; its path.
pub(super) fn tarball(system: &Path, to: &Path) -> anyhow::Result<PathBuf> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-I", "gzip -9n", "-cf"])
        .arg(to);
    run(tar.arg("-C").arg(system).args(["usr", "etc"]))?;
    Ok(to.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packaged_files_are_there() {
        let root = root().unwrap();
        for (from, _) in FILES {
            assert!(root.join(from).is_file(), "{from}");
        }
    }
}
