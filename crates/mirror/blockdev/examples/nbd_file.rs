//! Serves one file or block device over NBD, as it is, to measure the path between socket and disk alone:
//!
//! ```text
//! cargo run --release -p ebb-blockdev --example nbd_file -- FILE 127.0.0.1:10809
//! ```
//!
//! The export is named `disk` and is also the default one. Anyone who can connect can write to the file.

#[path = "../tests/all/backend.rs"]
mod backend;

use backend::{FileBackend, export};
use ebb_blockdev::{Bounds, Caching, DiskFile, Replies, Ring, serve};
use std::error::Error;
use std::path::Path;
use std::rc::Rc;
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, address] = &arguments[..] else { return Err("usage: nbd_file FILE ADDRESS:PORT".into()) };
    let disk = DiskFile::open(Path::new(file), Caching::Cached)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let error = LocalSet::new().block_on(&runtime, async {
        let exports = [export(&disk)].into();
        let replies = Replies::new();
        let backend = Rc::new(FileBackend::new(Ring::new()?, disk, replies.clone()));
        let driver = backend.clone();
        spawn_local(async move { driver.run().await });
        let listener = TcpListener::bind(address).await?;
        println!("listening on {}", listener.local_addr()?);
        std::io::Result::Ok(serve(listener, Bounds::of_process(), exports, backend, replies).await)
    })?;
    Err(error.into())
}
