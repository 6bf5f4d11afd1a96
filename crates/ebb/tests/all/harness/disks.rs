//! Emulated disks that are quick, so that a test sees their speeds change.

use std::path::Path;

/// The figures of a disk that changes its speed in 0.2 s and seeks in no time.
pub fn quick_disk() -> String {
    let mut model = toml::Table::try_from(ebb_mirror::TwoSpeedModel::paper()).expect("TOML");
    let mut set = |table: &str, key: &str, value: f64| {
        let model = match table {
            "" => &mut model,
            table => model[table].as_table_mut().expect("a table"),
        };
        model.insert(key.to_owned(), value.into());
    };
    for (key, value) in [
        ("overhead_seconds", 1e-5),
        ("track_to_track_seconds", 1e-5),
        ("average_seek_seconds", 1e-4),
        ("full_stroke_seconds", 2e-4),
        ("write_settle_seconds", 0.0),
    ] {
        set("", key, value);
    }
    set("low", "rpm", 9_000.0);
    set("high", "rpm", 30_000.0);
    set("up", "seconds", 0.2);
    set("down", "seconds", 0.2);
    toml::to_string(&model).expect("TOML")
}

/// Gives the mirror that a file notes epochs of 50 ms.
pub fn quick_epochs(entry: &Path) {
    let text = std::fs::read_to_string(entry).expect("the mirror is noted");
    let text = text.replace("epoch_seconds = 3.0", "epoch_seconds = 0.05");
    std::fs::write(entry, text.replace("settle_epochs = 3", "settle_epochs = 1")).expect("write");
}
