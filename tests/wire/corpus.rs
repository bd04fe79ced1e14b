//! The fuzz targets' checks, on the corpora that fuzzing has found (`./x fuzz`).

#[path = "../../fuzz/checks/mad.rs"]
mod mad;
#[path = "../../fuzz/checks/packet.rs"]
mod packet;

use std::path::Path;

/// Runs a check on every file of a corpus; returns how many there are.
fn run(name: &str, check: impl Fn(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let files = std::fs::read_dir(&folder).unwrap();
    let mut count = 0;
    for file in files {
        let path = file.unwrap().path();
        println!("{}", path.display()); // shown when the check fails
        check(&std::fs::read(path).unwrap());
        count += 1;
    }
    count
}

#[test]
fn packets() {
    assert!(run("packet", packet::run) > 40);
}

#[test]
fn messages_of_the_connection_manager() {
    assert!(run("mad", mad::run) >= 12);
}
