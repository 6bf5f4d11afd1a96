//! What there is to scrape, for Prometheus's `http_sd`: by the configuration file and the servers' states.

use crate::cluster::config::Config;
use ebb_types::{ServerId, ServerState};
use serde::Serialize;

/// The processes of the configuration file that answer scrapers.
pub struct Targets(Vec<Target>);

struct Target {
    server: Option<ServerId>,
    entry: Entry,
}

#[derive(Serialize)]
struct Entry {
    targets: [String; 1],
    labels: Labels,
}

#[derive(Serialize)]
struct Labels {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rack: Option<String>,
}

impl Targets {
    pub fn of(config: &Config) -> Targets {
        let labels = |role| Labels { role, member: None, server: None, rack: None };
        let target = |server, address: &Option<String>, labels| {
            address.clone().map(|address| Target { server, entry: Entry { targets: [address], labels } })
        };
        let metas = config.meta.iter().filter_map(|meta| {
            target(None, &meta.metrics, Labels { member: Some(meta.id.to_string()), ..labels("meta") })
        });
        let servers = config.server.iter().filter_map(|server| {
            let (id, rack) = (Some(server.id.to_string()), Some(server.rack.to_string()));
            let labels = Labels { server: id, rack, ..labels("server") };
            target(Some(ServerId(server.id)), &server.metrics, labels)
        });
        let gateways = config.gateway.iter().filter_map(|g| target(None, &g.metrics, labels("gateway")));
        Targets(metas.chain(servers).chain(gateways).collect())
    }

    /// Without servers whose silence is as it should be: asleep, on their way up, or gone for good. One that failed is
    /// listed, so that its silence shows.
    pub fn list(&self, state: impl Fn(ServerId) -> Option<ServerState>) -> String {
        let answers = |server| {
            matches!(state(server), Some(ServerState::Awake | ServerState::Draining | ServerState::Failed))
        };
        let listed = self.0.iter().filter(|target| target.server.is_none_or(answers));
        serde_json::to_string(&listed.map(|target| &target.entry).collect::<Vec<_>>()).expect("plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_are_left_out_and_failed_servers_are_not() {
        let text = include_str!("../../../../../examples/cluster.toml");
        let mut config: Config = toml::from_str(text).unwrap();
        config.meta[0].metrics = Some("127.0.0.1:1".into());
        for server in &mut config.server {
            server.metrics = (server.id != 9).then(|| format!("127.0.0.1:{}", 10 + server.id));
        }
        let state = |server: ServerId| match server.0 {
            1 => Some(ServerState::Awake),
            2 => Some(ServerState::Draining),
            3 => Some(ServerState::Asleep),
            4 => Some(ServerState::Waking),
            5 => Some(ServerState::Failed),
            6 => Some(ServerState::Lost),
            7 => None,
            _ => Some(ServerState::Awake),
        };
        let listed: serde_json::Value = serde_json::from_str(&Targets::of(&config).list(state)).unwrap();
        let listed = listed.as_array().unwrap();
        let addresses: Vec<&str> = listed.iter().map(|entry| entry["targets"][0].as_str().unwrap()).collect();
        assert_eq!(
            addresses,
            ["127.0.0.1:1", "127.0.0.1:11", "127.0.0.1:12", "127.0.0.1:15", "127.0.0.1:18"]
        );
        assert_eq!(listed[0]["labels"], serde_json::json!({ "role": "meta", "member": "1" }));
        assert_eq!(listed[1]["labels"], serde_json::json!({ "role": "server", "server": "1", "rack": "1" }));
    }
}
