//! What a chunk server's store lies on: a directory, or files on a mirror of two disks.
//!
//! The mirror is one of `ebb mirror`: it is called `server-ID`, and noted in the server's directory, which has no data
//! then. So `ebb mirror status server-ID --registry DIRECTORY` shows it, and `replace` gives it a new disk while the
//! server is stopped. The first start creates it.

use crate::cluster::config::{Config, ServerSection};
use crate::cluster::launch::private_directory;
use crate::cluster::random;
use crate::daemon::mirror::local::LocalMirror;
use crate::daemon::mirror::{Driver, Options};
use crate::error::NodeError;
use crate::mirror::registry::{Name, Registry};
use crate::mirror::{MirrorError, create};
use ebb_mirror::open::Accept;
use ebb_store::{Disk, FlatDisk, LinuxDisk};
use ebb_types::Bytes;
use std::path::PathBuf;
use std::sync::Arc;

/// It outlives the stores that are opened on it, one after another.
pub enum Ground {
    Directory(PathBuf),
    Mirror(LocalMirror),
}

impl Ground {
    pub fn open(config: &Config, section: &ServerSection) -> Result<Ground, NodeError> {
        let data = config.path(&section.data);
        private_directory(&data)?;
        let Some(disks) = &section.disks else {
            // Beside the pid file, not in the same directory: the store owns its whole directory.
            let directory = data.join("store");
            private_directory(&directory)?;
            return Ok(Ground::Directory(directory));
        };
        let name: Name = format!("server-{}", section.id).parse()?;
        let registry = Registry::find(Some(data))?;
        let disks = disks.each_ref().map(|disk| config.path(disk));
        let section = &config.mirror;
        if registry.file(&name).exists() {
            let entry = registry.load(&name)?;
            let noted = [entry.disk_a, entry.disk_b];
            if noted != disks {
                let [a, b] = noted;
                return Err(MirrorError::OtherDisks { a, b, file: registry.file(&name) }.into());
            }
        } else {
            create::create(&registry, &name, disks, Bytes::mib(section.log_mib), false)?;
        }
        let driver =
            Driver::new(section.driver, section.disk_model.as_ref().map(|model| config.path(model)))?;
        let options = Options {
            accept: Accept { degraded: section.degraded, loss: false },
            keep: None,
            policy: section.policy,
            ack: section.ack,
            driver,
        };
        LocalMirror::start(registry, name, options).map(Ground::Mirror).map_err(|error| match error {
            NodeError::Mirror(error @ MirrorError::Open { .. }) => {
                MirrorError::OfServer(Box::new(error)).into()
            }
            error => error,
        })
    }

    /// For one store at a time.
    pub fn disk(&self) -> Result<Arc<dyn Disk>, NodeError> {
        match self {
            Ground::Directory(directory) => Ok(Arc::new(LinuxDisk::new(directory)?)),
            Ground::Mirror(mirror) => {
                Ok(Arc::new(FlatDisk::open(Arc::new(mirror.device()), random::identity()?)?))
            }
        }
    }
}
