//! What an operator reads in a chunk server's log.

use ebb_chunkserver::shell::News;
use ebb_store::StoreError;

pub fn log(news: &News) {
    match news {
        News::Full(used, capacity) => {
            tracing::warn!("the store is full ({used} of {capacity}): client writes are refused");
        }
        News::Hangs(still, errno) => {
            let short = errno.map(|errno| StoreError::NotNow { errno }.to_string());
            let why = short.unwrap_or_else(|| "its disk does not answer".to_owned());
            tracing::error!(
                "the store has not moved for {still:.1?}: {why}. This server serves nothing until it does; look at the kernel log \
                 and the disk"
            );
        }
        News::Moves => tracing::info!("the store moves again: this server takes part again"),
        News::Forgets(refusal) => tracing::warn!("cannot keep the cluster map's version: {refusal}"),
        News::OldMetadata { known, offered } => tracing::warn!(
            "this server has seen version {known} of the cluster map, was offered {offered}, and does not obey it. A metadata server that \
             was briefly away catches up by itself. If this persists, the metadata went back to an older copy: start the \
             metadata servers on the newest copy of their directories"
        ),
        News::Bug { group, what } => tracing::error!(
            "a bug in this program: {group}: {what}. The server continues; please report it with this log"
        ),
        News::Silent(time) => tracing::warn!(
            "no metadata leader has been heard for {} s: this server stays as it is, serves nothing without a lease, and goes to \
             sleep on no older order; check the metadata servers",
            time.as_secs()
        ),
        News::Heard(time) => {
            tracing::info!("a metadata leader is heard again after {} s", time.as_secs());
        }
        News::StaysAwake(why) => tracing::warn!("the machine stays awake: {why}"),
    }
}
