//! A file through which processes of one user on one host pass each other a few secret bytes.
//!
//! The directory of temporary files belongs to everybody, so nothing in it is believed: the directory
//! that holds the file must be the user's, closed to others, and no symbolic link; so must the file.

use std::os::fd::OwnedFd;
use std::path::Path;

use ccl_core::Error;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, mkdir, open, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use super::unique_id::UNIQUE_ID_BYTES;

/// A file by name in a directory that only this user can enter.
#[derive(Debug)]
pub(super) struct PrivateFile {
    directory: OwnedFd,
    name: String,
    /// For messages.
    path: String,
}

impl PrivateFile {
    /// The file called `name` in this user's directory below `parent`, which is made if need be. The file
    /// itself need not exist.
    ///
    /// # Errors
    /// [`Error::System`] if the directory is not this user's alone.
    pub(super) fn new(parent: &Path, name: String) -> Result<Self, Error> {
        let user = rustix::process::geteuid();
        let path = parent.join(format!("r2ccl-{}", user.as_raw()));
        let shown = path.join(&name).display().to_string();
        let failed = |cause: Errno| Error::system(format!("prepare {}", path.display()), cause);
        match mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(cause) => return Err(failed(cause)),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty()).map_err(failed)?;
        check_owner(&fstat(&directory).map_err(failed)?)
            .map_err(|cause| Error::system(format!("use {}", path.display()), cause))?;
        Ok(Self { directory, name, path: shown })
    }

    /// Where the file is, for messages.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Replaces the file by one with `bytes`, at once.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(super) fn write(&self, bytes: &[u8; UNIQUE_ID_BYTES]) -> Result<(), Error> {
        let draft = format!("{}.{}", self.name, std::process::id());
        self.write_draft(&draft, bytes)
            .and_then(|()| renameat(&self.directory, &draft, &self.directory, &self.name))
            .map_err(|cause| Error::system(format!("write {}", self.path), cause))
    }

    fn write_draft(&self, draft: &str, bytes: &[u8]) -> rustix::io::Result<()> {
        // A process of the same number may have died here.
        match unlinkat(&self.directory, draft, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(cause),
        }
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.directory, draft, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::io::write(&file, bytes)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }

    /// What is in the file, if it is there and complete.
    ///
    /// # Errors
    /// [`Error::System`] if it cannot be read or is not this user's alone.
    pub(super) fn read(&self) -> Result<Option<[u8; UNIQUE_ID_BYTES]>, Error> {
        let failed = |cause: String| Error::system(format!("read {}", self.path), cause);
        // Without NONBLOCK, opening a pipe that somebody put there would wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.directory, &self.name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(cause) => return Err(failed(cause.to_string())),
        };
        let status = fstat(&file).map_err(|cause| failed(cause.to_string()))?;
        check_owner(&status).map_err(failed)?;
        if !FileType::from_raw_mode(status.st_mode).is_file() {
            return Err(failed("it is no regular file".to_owned()));
        }
        let mut bytes = [0; UNIQUE_ID_BYTES];
        let count =
            rustix::io::read(&file, &mut bytes[..]).map_err(|cause| failed(cause.to_string()))?;
        Ok((count == UNIQUE_ID_BYTES).then_some(bytes))
    }

    /// Removes the file if `bytes` are still in it; another job may have replaced it.
    pub(super) fn remove(&self, bytes: &[u8; UNIQUE_ID_BYTES]) {
        if matches!(self.read(), Ok(Some(present)) if present == *bytes) {
            let removed = unlinkat(&self.directory, &self.name, AtFlags::empty());
            if let Err(cause) = removed {
                tracing::warn!(path = self.path, %cause, "the file of the rendezvous stays behind");
            }
        }
    }
}

/// Whether only this user can read and write it.
fn check_owner(status: &Stat) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    if status.st_uid != user {
        return Err(format!("it belongs to user {}, not to {user}", status.st_uid));
    }
    let open_to_others = status.st_mode & 0o077;
    if open_to_others != 0 {
        return Err(format!("other users can reach it (mode {:o})", status.st_mode & 0o777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn directory_of(parent: &Path) -> std::path::PathBuf {
        parent.join(format!("r2ccl-{}", rustix::process::geteuid().as_raw()))
    }

    #[test]
    fn bytes_are_passed_on_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let file = || PrivateFile::new(parent.path(), "job".into()).unwrap();
        assert_eq!(file().read(), Ok(None));
        let (old, new) = ([1; UNIQUE_ID_BYTES], [2; UNIQUE_ID_BYTES]);
        file().write(&old).unwrap();
        file().write(&new).unwrap();
        assert_eq!(file().read(), Ok(Some(new)));
        file().remove(&old);
        assert_eq!(file().read(), Ok(Some(new)));
        file().remove(&new);
        assert_eq!(file().read(), Ok(None));
        assert_eq!(fs::read_dir(directory_of(parent.path())).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_open_to_others_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let directory = directory_of(parent.path());
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let message = PrivateFile::new(parent.path(), "job".into()).unwrap_err().to_string();
        assert!(message.contains("mode 755"), "{message}");
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), directory_of(parent.path())).unwrap();
        assert!(PrivateFile::new(parent.path(), "job".into()).is_err());

        let parent = tempfile::tempdir().unwrap();
        let file = PrivateFile::new(parent.path(), "job".into()).unwrap();
        let target = elsewhere.path().join("target");
        fs::write(&target, [1; UNIQUE_ID_BYTES]).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&target, directory_of(parent.path()).join("job")).unwrap();
        assert!(file.read().is_err());
        file.write(&[2; UNIQUE_ID_BYTES]).unwrap();
        assert_eq!(file.read(), Ok(Some([2; UNIQUE_ID_BYTES])));
        assert_eq!(fs::read(target).unwrap(), [1; UNIQUE_ID_BYTES]);
    }

    #[test]
    fn a_short_or_foreign_file_is_not_believed() {
        let parent = tempfile::tempdir().unwrap();
        let file = PrivateFile::new(parent.path(), "job".into()).unwrap();
        let path = directory_of(parent.path()).join("job");
        fs::write(&path, [1; 5]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(file.read(), Ok(None));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(file.read().is_err());
    }
}
