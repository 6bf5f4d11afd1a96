//! QEMU's clients, which negotiate structured replies, block sizes and the allocation context.

use crate::file::served;
use crate::on_one_thread;
use ebb_testing::skip;
use ebb_types::Random;
use std::process::Command;

/// Its output. Runs beside the server's thread.
async fn run(program: &'static str, arguments: Vec<String>) -> String {
    let run = move || {
        let out = Command::new(program).args(&arguments).output().unwrap();
        let text = [&out.stdout[..], &out.stderr[..]].map(String::from_utf8_lossy).concat();
        assert!(out.status.success(), "{program} {arguments:?}: {text}");
        text
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(format_args!("{program} is not installed"));
    }
    found
}

#[test]
fn qemu_img_copies_there_and_back() {
    if !has("qemu-img") {
        return;
    }
    on_one_thread(async {
        let bytes = 24 << 20;
        let served = served(bytes).await;
        let dir = tempfile::tempdir().unwrap();
        let (from, back) = (dir.path().join("from"), dir.path().join("back"));
        let mut random = Random::new(5);
        let mut data: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        data[3 << 20..9 << 20].fill(0);
        std::fs::write(&from, &data).unwrap();
        let uri = format!("nbd://{}/disk", served.address);
        let (from, back) = (from.display(), back.display());
        run("qemu-img", words(&format!("convert -n -W -f raw -O raw {from} {uri}"))).await;
        assert!(std::fs::read(&served.path).unwrap() == data);
        let same = run("qemu-img", words(&format!("compare -f raw -F raw {from} {uri}"))).await;
        assert!(same.contains("identical"), "{same}");
        run("qemu-img", words(&format!("convert -f raw -O raw {uri} {back}"))).await;
        assert!(std::fs::read(dir.path().join("back")).unwrap() == data);
        let map = run("qemu-img", words(&format!("map -f raw --output=json {uri}"))).await;
        assert!(map.contains("\"zero\": true") && map.contains("\"zero\": false"), "{map}");
    });
}

#[test]
fn qemu_io_reads_what_it_wrote_zeroed_and_discarded() {
    if !has("qemu-io") {
        return;
    }
    on_one_thread(async {
        let served = served(8 << 20).await;
        let mut arguments = words(&format!("-f raw nbd://{}/disk", served.address));
        for command in [
            "write -P 7 0 2M",
            "write -P 8 -f 1M 64k",
            "write -z 4k 8k",
            "write -z -u 256k 128k",
            "discard 512k 64k",
            "flush",
            "read -P 7 0 4k",
            "read -P 0 4k 8k",
            "read -P 7 12k 16k",
            "read -P 0 256k 128k",
            "read -P 0 512k 64k",
            "read -P 8 1M 64k",
            "read -P 0 2M 6M",
        ] {
            arguments.extend(["-c".to_owned(), command.to_owned()]);
        }
        let text = run("qemu-io", arguments).await;
        assert!(!text.contains("failed") && !text.contains("error"), "{text}");
        let found = std::fs::read(&served.path).unwrap();
        assert!(found[1 << 20..][..64 << 10].iter().all(|byte| *byte == 8));
        assert!(found[4096..12288].iter().all(|byte| *byte == 0));
    });
}
