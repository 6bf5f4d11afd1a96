//! Serves volumes of the cluster to NBD clients, each as an export of its name.

use crate::cluster::launch::Stop;
use crate::daemon::files;
use crate::daemon::metrics::traffic::{VolumeOp, VolumeTraffic, report_client};
use crate::daemon::metrics::{self, Page, names};
use crate::error::{NodeError, io, listen};
use ebb_blockdev::{Backend, Bounds, Replies, RequestId, serve};
use ebb_client::Client;
use ebb_gateway::{Cluster, tend};
use ebb_nbd::{BlockSizes, Errno, Export, Extent, Piece, Reply, Request};
use ebb_types::Bytes as Size;
use ebb_volume::{Volume, VolumeError};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;

/// The export's smallest and preferred block, and the longest payload: clients that do not ask send up to 32 MiB.
const SECTOR: u32 = 512;
const PREFERRED: u32 = 4096;
const LONGEST: u32 = 32 << 20;

/// A volume, its name, and what clients asked of it.
#[derive(Clone)]
struct Served {
    name: String,
    volume: Volume,
    traffic: Rc<VolumeTraffic>,
}

/// By the index of their exports.
struct All {
    served: Vec<Served>,
    replies: Replies,
}

impl Backend for All {
    fn request(&self, id: RequestId, export: usize, request: Request) {
        let Served { volume, traffic, .. } = self.served[export].clone();
        let replies = self.replies.clone();
        let ((op, bytes), began) = (kind(&request), Instant::now());
        traffic.asked();
        // Here, not in the task: requests take their turns as they arrive.
        let carried = carry_out(volume, request);
        tokio::task::spawn_local(async move {
            let reply = carried.await.unwrap_or_else(|error| {
                tracing::error!(%error, "a request to the volume failed");
                Reply::Failed(errno(&error))
            });
            traffic.answered(op, bytes, !matches!(reply, Reply::Failed(_)), began.elapsed());
            replies.reply(id, reply);
        });
    }
}

/// What it is counted as, and its bytes.
fn kind(request: &Request) -> (VolumeOp, u64) {
    match request {
        Request::Read { length, .. } => (VolumeOp::Read, (*length).into()),
        Request::Write { payload, .. } => (VolumeOp::Write, payload.len() as u64),
        Request::Trim { length, .. } | Request::WriteZeroes { length, .. } => {
            (VolumeOp::Zero, (*length).into())
        }
        Request::Flush => (VolumeOp::Flush, 0),
        Request::Cache { .. } | Request::Status { .. } => (VolumeOp::Other, 0),
    }
}

type Carried = Pin<Box<dyn Future<Output = Result<Reply, VolumeError>>>>;

/// Has the request take its turn. The connection that it came on may end: it is carried out all the same, and what
/// comes on other connections waits for it where it must.
fn carry_out(volume: Volume, request: Request) -> Carried {
    match request {
        Request::Read { offset, length, .. } => {
            Box::pin(
                async move { Ok(Reply::Data(vec![Piece::Data(volume.read(offset, length.into()).await?)])) },
            )
        }
        Request::Write { offset, payload, .. } => {
            let written = volume.write(offset, payload);
            Box::pin(async move { written.await.map(|()| Reply::Done) })
        }
        // Setting part of a moved slice to zero is a write.
        Request::WriteZeroes { fast: true, .. } if volume.meta().home.is_some() => {
            answered(Reply::Failed(Errno::NotSupported))
        }
        Request::Trim { offset, length, .. } | Request::WriteZeroes { offset, length, .. } => {
            let zeroed = volume.zero(offset, length.into());
            Box::pin(async move { zeroed.await.map(|()| Reply::Done) })
        }
        Request::Flush => {
            let flushed = volume.flush();
            Box::pin(async move {
                flushed.await;
                Ok(Reply::Done)
            })
        }
        Request::Cache { .. } => answered(Reply::Done),
        Request::Status { length, .. } => {
            answered(Reply::Extents(vec![Extent { length: length.into(), hole: false, zero: false }]))
        }
    }
}

fn answered(reply: Reply) -> Carried {
    Box::pin(std::future::ready(Ok(reply)))
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

/// Serves NBD clients at this address until the process is asked to stop, or other ones have taken all volumes over.
/// `scraped`: where `/metrics` is.
pub async fn run(
    client: Client,
    volumes: Vec<(String, Volume)>,
    nbd: &str,
    scraped: Option<&str>,
) -> Result<(), NodeError> {
    files::raise_limit();
    let listener = TcpListener::bind(nbd).await.map_err(listen(nbd, "give another address with --nbd"))?;
    let address = listener.local_addr().map_err(io("listen on", nbd))?;
    let mut stop = Stop::new()?;
    let with_traffic = |(name, volume)| Served { name, volume, traffic: Rc::default() };
    let served: Vec<Served> = volumes.into_iter().map(with_traffic).collect();
    for Served { name, volume, .. } in &served {
        println!("volume {name}: {} on nbd://{address}/{name}", Size(volume.size()));
    }
    let exports: Vec<Export> = served.iter().map(export).collect();
    let replies = Replies::new();
    let (source, cluster) = (served.clone(), Arc::new(Cluster::new(client.clone())));
    metrics::open(scraped, move || page(&source, &client)).await?;
    let all = Rc::new(All { served: served.clone(), replies: replies.clone() });
    tokio::select! {
        error = serve(listener, Bounds::of_process(), exports.into(), all, replies) => return Err(io("serve", nbd)(error)),
        () = tend(cluster) => {}
        () = all_taken(&served) => return Err(VolumeError::Taken.into()),
        () = stop.asked() => {}
    }
    close(served.into_iter().map(|served| served.volume)).await
}

fn export(Served { name, volume, .. }: &Served) -> Export {
    Export {
        name: name.clone(),
        description: format!("volume {name}"),
        size: volume.size(),
        block: BlockSizes { minimum: SECTOR, preferred: PREFERRED, maximum: LONGEST },
        read_only: false,
        rotational: false,
        multi_conn: true,
    }
}

/// One that is taken fails its requests; the others are served on.
async fn all_taken(served: &[Served]) {
    for Served { volume, .. } in served {
        volume.taken().await;
    }
}

/// Gives all of them back, also if one cannot be.
pub async fn close(volumes: impl IntoIterator<Item = Volume>) -> Result<(), NodeError> {
    let closed = futures_util::future::join_all(volumes.into_iter().map(Volume::close)).await;
    Ok(closed.into_iter().collect::<Result<(), VolumeError>>()?)
}

fn page(served: &[Served], client: &Client) -> Page {
    let mut page = metrics::of_process();
    for Served { name, volume, traffic } in served {
        traffic.report(name, &mut page);
        page.put(names::VOLUME_SIZE, &[name], volume.size() as f64);
        page.put(names::VOLUME_FRONT, &[name], volume.front_bytes() as f64);
    }
    report_client(&client.counters(), &mut page);
    page
}
