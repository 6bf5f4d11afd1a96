//! Serves a volume of the cluster to NBD clients.

use crate::cluster::launch::Stop;
use crate::error::{NodeError, io};
use ebb_blockdev::{Backend, Replies, RequestId, serve};
use ebb_nbd::{BlockSizes, Errno, Export, Extent, Piece, Reply, Request};
use ebb_types::Bytes as Size;
use ebb_volume::{Volume, VolumeError};
use std::rc::Rc;
use tokio::net::TcpListener;

/// The export's smallest and preferred block, and the longest payload: clients that do not ask send up to 32 MiB.
const SECTOR: u32 = 512;
const PREFERRED: u32 = 4096;
const LONGEST: u32 = 32 << 20;

struct Served {
    volume: Volume,
    replies: Replies,
}

impl Backend for Served {
    fn request(&self, id: RequestId, _: usize, request: Request) {
        let (volume, replies) = (self.volume.clone(), self.replies.clone());
        tokio::task::spawn_local(async move {
            let reply = carry_out(&volume, request).await.unwrap_or_else(|error| {
                tracing::error!(%error, "a request to the volume failed");
                Reply::Failed(errno(&error))
            });
            replies.reply(id, reply);
        });
    }
}

async fn carry_out(volume: &Volume, request: Request) -> Result<Reply, VolumeError> {
    Ok(match request {
        Request::Read { offset, length, .. } => {
            Reply::Data(vec![Piece::Data(volume.read(offset, length.into()).await?)])
        }
        Request::Write { offset, payload, .. } => {
            volume.write(offset, payload).await?;
            Reply::Done
        }
        // Setting part of a moved slice to zero is a write.
        Request::WriteZeroes { fast: true, .. } if volume.meta().home.is_some() => {
            Reply::Failed(Errno::NotSupported)
        }
        Request::Trim { offset, length, .. } | Request::WriteZeroes { offset, length, .. } => {
            volume.zero(offset, length.into()).await?;
            Reply::Done
        }
        // A write is answered when it is durable.
        Request::Flush | Request::Cache { .. } => Reply::Done,
        Request::Status { length, .. } => {
            Reply::Extents(vec![Extent { length: length.into(), hole: false, zero: false }])
        }
    })
}

fn errno(error: &VolumeError) -> Errno {
    use ebb_client::ClientError;
    use ebb_types::ChunkError;
    match error {
        VolumeError::FrontFull { .. }
        | VolumeError::Client(ClientError::Chunk { why: ChunkError::NoSpace, .. }) => Errno::NoSpace,
        _ => Errno::Io,
    }
}

/// Serves NBD clients at this address until the process is asked to stop, or another one takes the volume over.
pub async fn run(name: &str, volume: Volume, nbd: &str) -> Result<(), NodeError> {
    let listener = TcpListener::bind(nbd).await.map_err(io("listen on", nbd))?;
    let address = listener.local_addr().map_err(io("listen on", nbd))?;
    let mut stop = Stop::new()?;
    let export = Export {
        name: name.to_owned(),
        description: format!("volume {name}"),
        size: volume.size(),
        block: BlockSizes { minimum: SECTOR, preferred: PREFERRED, maximum: LONGEST },
        read_only: false,
        rotational: false,
        multi_conn: true,
    };
    println!("volume {name}: {} on nbd://{address}/{name}", Size(export.size));
    let replies = Replies::new();
    let served = Rc::new(Served { volume: volume.clone(), replies: replies.clone() });
    tokio::select! {
        error = serve(listener, [export].into(), served, replies) => return Err(io("serve", nbd)(error)),
        () = volume.taken() => return Err(VolumeError::Taken.into()),
        () = stop.asked() => {}
    }
    Ok(volume.close().await?)
}
