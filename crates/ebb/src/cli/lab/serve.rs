//! `ebb lab serve`: evaluations in a browser, without a cluster: their results, the campaign that runs, and matrices to
//! run.
//!
//! There is one way to run a campaign. The page keeps a matrix as a file beside the results and starts `ebb lab eval
//! run` on it; a pause ends that program, and a start continues with what has no result. What may be driven and read is
//! stated when the server is started, as for `ebb lab agent`; what may be overwritten, by the matrix.

mod campaigns;
mod place;
mod plan;
mod results;

use crate::cli::page::say_urls;
use crate::cluster::launch::Stop;
use crate::cluster::secrets::PageTokens;
use crate::error::{NodeError, io, listen};
use campaigns::Campaigns;
use clap::Args;
use ebb_web::{Answer, Hosts, Lab, LabAct, LabRefusal, LabView, Question, serve_lab};
use place::{LabPlace, refused};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::net::TcpListener;

#[derive(Args)]
pub struct ServeArgs {
    /// The results, an SQLite file (docs/results-schema.md); the page's matrices are kept in a folder beside it
    #[arg(long, value_name = "FILE", default_value = "results.sqlite")]
    db: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9081")]
    address: SocketAddr,
    /// Another host name by which browsers reach it; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// A target that the page may evaluate, and overwrite if the matrix says so; may be repeated
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// A meter that the page may use, as named by `ebb lab meter list`; may be repeated
    #[arg(long = "meter", value_name = "METER")]
    meters: Vec<String>,
    /// Directory of recorded traces, and of those of peak runs [default: traces, beside the results]
    #[arg(long, value_name = "DIR")]
    depository: Option<PathBuf>,
    /// Configuration of the cluster whose volumes (ebb:VOLUME) are evaluated
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The lab of this machine.
struct LocalLab {
    place: LabPlace,
    campaigns: Campaigns,
}

impl Lab for LocalLab {
    async fn answer(&self, question: Question) -> Result<Answer, LabRefusal> {
        let place = self.place.clone();
        blocking(move || match question {
            Question::Plan(wish) => plan::planned(&place, *wish).map(|planned| Answer::json(&planned)),
            Question::Offers => Ok(Answer::json(&plan::offers(&place))),
            question => results::answer(&place, question),
        })
        .await
    }

    async fn act(&self, act: LabAct) -> Result<(), LabRefusal> {
        let (place, campaigns) = (self.place.clone(), self.campaigns.clone());
        blocking(move || match act {
            LabAct::Create { matrix } => plan::create(&place, *matrix),
            LabAct::Start { campaign } => campaigns.start(&campaign),
            LabAct::Pause { campaign } => campaigns.pause(&campaign),
            LabAct::Delete { campaign } => campaigns.delete(&campaign),
        })
        .await
    }

    async fn look(&self, after: u64) -> LabView {
        let campaigns = self.campaigns.clone();
        let looked = tokio::task::spawn_blocking(move || campaigns.look(after)).await;
        looked.expect("a look ends with a view")
    }
}

/// Files are read and written beside the streams of open pages.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LabRefusal> + Send + 'static,
) -> Result<T, LabRefusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(refused(error)))
}

pub async fn run(args: ServeArgs) -> Result<ExitCode, NodeError> {
    let mut stop = Stop::new()?;
    let folder = args.db.parent().map(PathBuf::from).unwrap_or_default();
    let tokens = PageTokens::beside(&folder, "lab")?;
    let listener = TcpListener::bind(args.address)
        .await
        .map_err(listen(args.address, "give another address with --address"))?;
    let address = listener.local_addr().map_err(io("listen on", args.address.to_string()))?;
    say_urls(&tokens, address, &args.names);
    let depository = args.depository.unwrap_or_else(|| folder.join("traces"));
    let place = LabPlace {
        db: args.db,
        depository: std::path::absolute(&depository).map_err(io("find", &depository))?,
        targets: args.targets,
        meters: args.meters,
        config: args.config,
    };
    let campaigns = Campaigns::new(place.clone());
    let lab = LocalLab { place, campaigns: campaigns.clone() };
    let hosts = Hosts::new(address, &args.names);
    serve_lab(listener, tokens.tokens()?, hosts, lab, stop.asked()).await;
    // A campaign ends with the page that it was started from; the next start resumes it.
    campaigns.end();
    Ok(ExitCode::SUCCESS)
}
