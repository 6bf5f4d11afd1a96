//! Who may do what, and who can read the files that the programs write (docs/security.md).

use crate::harness::{Cluster, PATIENCE, Shape, Who, wait};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Everything below a directory that users other than its owner may read, write or enter.
fn open_to_others(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        // Files come and go while servers run.
        let Ok(about) = std::fs::symlink_metadata(&path) else { continue };
        if about.permissions().mode() & 0o077 != 0 {
            found.push(path.clone());
        }
        if about.is_dir() {
            found.extend(open_to_others(&path));
        }
    }
    found
}

fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(why), "{why:?} is not in: {said}");
}

#[test]
fn a_gateways_keys_read_and_write_data_and_change_no_cluster() {
    let mut cluster = Cluster::start(&Shape::lively());
    cluster.launch(Who::Gateway);
    wait("the gateway listens", PATIENCE, || std::net::TcpStream::connect(&cluster.gateway).ok());
    let before = cluster.status();

    // The files on a machine that runs only a gateway.
    let directory = cluster.directory().to_owned();
    let text = std::fs::read_to_string(&cluster.config).expect("the configuration");
    let config = |name: &str, secret: &str| {
        let path = directory.join(name);
        let own = ["secret", "server.secret"].iter().fold(text.clone(), |text, other| {
            text.replace(&format!("secret_file = \"{other}\""), &format!("secret_file = \"{secret}\""))
        });
        std::fs::write(&path, own).expect("write");
        path
    };
    let run = |config: &Path, args: &[&str]| {
        let mut command = std::process::Command::new(crate::harness::EBB);
        command.args(args).arg("--config").arg(config).output().expect("run ebb")
    };
    let gateway = config("gateway.toml", "gateway.secret");
    assert!(run(&gateway, &["status"]).status.success());
    assert!(run(&gateway, &["gear", "plan"]).status.success());
    for args in [&["gear", "set", "2/3"][..], &["gear", "auto"], &["lost", "3"]] {
        refused(&run(&gateway, args), "only an administrator");
    }
    cluster.terminate(Who::Server(3));
    refused(&run(&gateway, &["lost", "3"]), "only an administrator");
    refused(&run(&gateway, &["server", "--id", "3"]), "no server key");
    refused(&run(&gateway, &["meta"]), "no meta key");
    refused(&run(&gateway, &["secret", "--admin", "/nowhere"]), "no admin key");

    // A chunk server's keys are no administrator's either; an administrator's are no server's.
    refused(&run(&config("server.toml", "server.secret"), &["gear", "set", "2/3"]), "only an administrator");
    let ops = directory.join("ops.secret");
    let made = cluster.ebb(&["secret", "--admin", &ops.to_string_lossy()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let ops = config("ops.toml", "ops.secret");
    refused(&run(&ops, &["server", "--id", "3"]), "no server key");
    assert!(run(&ops, &["gear", "set", "3/3"]).status.success());

    cluster.launch(Who::Server(3));
    cluster.heal();
    assert_eq!(cluster.status().servers.len(), before.servers.len());
    cluster.verify(&[]);
}

#[test]
fn what_a_cluster_writes_is_its_owners_alone() {
    let mut cluster = Cluster::create(&Shape::lively());
    // As an administrator in a hurry would create it.
    let data = cluster.data(Who::Server(1));
    std::fs::create_dir_all(&data).expect("a directory");
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    cluster.start_all();
    cluster.with_client(async |client| {
        let object = client.allocate_objects(1).await.expect("an object");
        let bytes = bytes::Bytes::from(vec![7; 3 << 20]);
        client.write_object(object, 0, bytes).await.expect("written");
    });
    cluster.stop_all();
    let config = std::fs::canonicalize(&cluster.config).expect("a file");
    let open: Vec<PathBuf> =
        open_to_others(cluster.directory()).into_iter().filter(|path| *path != config).collect();
    assert!(open.is_empty(), "others may read {open:?}");
}
