//! Command lines, what they mean and what is said against them.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Bench {
    #[command(flatten)]
    args: BenchArgs,
}

fn plan(line: &str) -> Result<BenchPlan, String> {
    let words = std::iter::once("bench").chain(line.split(' ').filter(|w| !w.is_empty()));
    let parsed = Bench::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
    BenchPlan::try_from(&parsed.args).map_err(|e| e.to_string())
}

fn refused(line: &str) -> String {
    plan(line).expect_err(line)
}

fn paths_of(line: &str) -> Vec<String> {
    plan(line).unwrap().paths.iter().map(Path::to_string).collect()
}

#[test]
fn defaults() {
    let plan = plan("").unwrap();
    assert_eq!(plan.gpu, Gpu::Auto);
    assert_eq!(plan.host_numa, None);
    assert_eq!(plan.nic, "soft");
    assert_eq!((plan.sizes_bytes.first(), plan.sizes_bytes.last()), (Some(&8), Some(&(4 << 20))));
    assert_eq!((plan.window_bytes, plan.slot_bytes), (128 << 10, 4096));
    assert_eq!((plan.line, plan.dest), (LineFormat::L12S4, Dest::Host));
    assert!(plan.credits && !plan.tearing && plan.source == Side::Gpu);
    assert_eq!(plan.row_limit, Duration::from_millis(500));
    assert_eq!(plan.timeout, Duration::from_secs(5));
}

#[test]
fn values() {
    let plan = plan(
        "--gpu 1 --host-numa far --sizes 8,4KiB --messages 7 --seconds 0.5 \
         --window 1MiB --slot 64 --line 60+4 --engines 2 --copy-threads 0 --qps 4 --seed 9 --json - \
         --credits off \
         --tearing --dest gpu --timeout-ms 10",
    )
    .unwrap();
    assert_eq!((plan.gpu, plan.host_numa), (Gpu::Cuda(1), Some(Numa::Far)));
    assert_eq!(plan.sizes_bytes, [8, 4096]);
    assert_eq!((plan.window_bytes, plan.slot_bytes), (1 << 20, 64));
    assert_eq!((plan.line, plan.dest), (LineFormat::L60S4, Dest::Gpu));
    assert_eq!((plan.engines, plan.qps, plan.seed, plan.messages), (2, 4, 9, 7));
    assert_eq!(plan.copy_threads, Some(0));
    assert!(!plan.credits && plan.tearing);
    assert_eq!(super::BenchPlan { gpu: Gpu::Host, ..plan.clone() }.gpu, Gpu::Host);
    assert_eq!(plan.row_limit, Duration::from_millis(500));
}

#[test]
fn places_are_named_and_wrong_ones_refused() {
    assert!(plan("").unwrap().places.is_open());
    let placed = plan("--place sq=gpu,cq=host --window 1MiB").unwrap();
    assert_eq!(
        (placed.places.to_string(), placed.window_bytes),
        ("sq=gpu,cq=host".into(), 1 << 20)
    );
    for wrong in ["--place sq", "--place sq=far", "--place sq=gpu,sq=host", "--place uar=gpu"] {
        let line = refused(wrong);
        assert!(
            line.starts_with("--place: ") && line.ends_with("for example sq=gpu,cq=host"),
            "{line}"
        );
    }
}

#[test]
fn an_engine_on_a_gpu_has_its_own_destination_and_no_packets() {
    let asked = plan("--engine gpu:1 --dest engine --in-flight 64 --source host").unwrap();
    assert_eq!(asked.source, Side::Host);
    assert_eq!((asked.engine, asked.dest), (EngineAt::Gpu(1), Dest::Engine));
    assert_eq!((asked.in_flight, asked.dest.side()), (64, Side::Gpu));
    assert_eq!(plan("").unwrap().engine, EngineAt::Host, "control");
    for (line, said) in [
        ("--engine gpu", "--engine is \"gpu\"; give host, or gpu:N with a device's number"),
        ("--engine gpu:x", "--engine is \"gpu:x\"; give host, or gpu:N with a device's number"),
        ("--in-flight 65", "--in-flight is 65; give a number from 1 to 64"),
    ] {
        assert_eq!(refused(line), said);
    }
    assert!(refused("--dest engine").contains("the engine runs on the host"));
    assert!(refused("--engine gpu:1 --link shm").contains("packet link"));
    assert!(refused("--engine gpu:1 --nic mlx5_0").starts_with("--engine"));
}

#[test]
fn a_verbs_device_takes_no_options_of_the_software_nic() {
    let plan = plan("--nic mlx5_0 --data push").unwrap();
    assert_eq!(plan.nic, "mlx5_0");
    let paths: Vec<String> = plan.paths.iter().map(Path::to_string).collect();
    assert_eq!(paths, ["push/blueflame", "push/kernel", "push/stream", "push/cpu"]);
    for option in [
        "--kick kernel,inband",
        "--line 60+4",
        "--engines 2",
        "--copy-threads 0",
        "--link shm",
        "--pcap x",
    ] {
        let line = refused(&format!("--nic mlx5_0:1 {option}"));
        let name = option.split(' ').next().unwrap();
        assert!(line.starts_with(name) && line.contains("mlx5_0:1"), "{line}");
        assert!(line.contains("--nic soft"), "{line}");
    }
}

#[test]
fn paths_are_the_combinations_that_exist() {
    assert_eq!(paths_of("").len(), Path::ALL.len());
    assert_eq!(
        paths_of("--data tcp,push,push --kick inband,kernel"),
        ["push/inband", "push/kernel", "tcp"]
    );
    assert_eq!(paths_of("--kick kernel"), ["push/kernel", "pull/kernel", "staged/kernel"]);
    assert_eq!(paths_of("--kick blueflame"), ["push/blueflame", "pull/blueflame"]);
    assert_eq!(
        paths_of("--data pull"),
        ["pull/blueflame", "pull/kernel", "pull/stream", "pull/cpu"]
    );
    assert_eq!(paths_of("--data tcp"), ["tcp"]);
    assert_eq!(paths_of("--data auto"), ["auto"]);
    assert_eq!(paths_of("--data auto,push --kick kernel"), ["push/kernel", "auto"]);
}

#[test]
fn names() {
    assert_eq!(
        refused("--data shove"),
        "--data: 'shove' is not a data path: it is one of push, pull, staged, tcp, auto; give one of these"
    );
    assert_eq!(
        refused("--kick bell"),
        "--kick: 'bell' is not a kick: it is one of kernel, blueflame, inband, stream, cpu; give \
         one of these"
    );
    assert_eq!(
        refused("--line 8+8"),
        "--line: '8+8' is not a line format: it is one of 12+4, 14+2, 60+4; give one of these"
    );
    assert!(refused("--source engine").starts_with("--source: 'engine' is not a side"));
    assert!(refused("--dest moon").starts_with("--dest: 'moon' is not a side"));
    assert!(refused("--data push,").starts_with("--data: '' is not a data path"));
    assert_eq!(refused("--credits maybe"), "--credits: 'maybe' is no choice; give on or off");
    assert_eq!(
        refused("--host-numa here"),
        "--host-numa: 'here' is no placement; give near or far"
    );
    for gpu in ["-1", "cuda", "99999999999"] {
        assert_eq!(
            refused(&format!("--gpu {gpu}")),
            format!("--gpu: '{gpu}' is no device; give its number, or host")
        );
    }
}

#[test]
fn combinations_that_do_not_exist() {
    assert_eq!(
        refused("--data pull --kick inband"),
        "--data pull goes with none of --kick inband; its kicks are kernel, blueflame, stream, cpu"
    );
    assert_eq!(
        refused("--data tcp --kick cpu"),
        "--kick cpu goes with none of --data tcp; add --data push, which goes with every kick"
    );
    assert_eq!(
        refused("--data push,staged --kick inband"),
        "--data staged goes with none of --kick inband; its kicks are kernel, stream, cpu"
    );
    assert_eq!(
        refused("--data pull --kick kernel,inband"),
        "--kick inband goes with none of --data pull; add --data push, which goes with every kick"
    );
    assert_eq!(
        refused("--data pull --line 12+4"),
        "--line concerns push/inband, which is not measured; add it with --data push --kick \
         inband, or leave the option out"
    );
}

#[test]
fn sizes_windows_and_slots() {
    assert_eq!(
        refused("--sizes 0"),
        "--sizes: '0' is zero bytes: a size is at least 1; give for example 8,64,4KiB or 8..4MiB"
    );
    assert!(refused("--sizes -8").starts_with("--sizes: '-8' is not a size"));
    assert_eq!(
        refused("--sizes 4GiB"),
        "--sizes: 4 GiB is more than a message holds; give at most 1 GiB"
    );
    assert!(refused("--window 128kB").starts_with("--window: '128kB' has a decimal unit"));
    assert!(refused("--slot 0").starts_with("--slot: '0' is zero bytes"));
    assert_eq!(
        refused("--slot 100"),
        "--slot is 100 B, which is no multiple of 64; give for example 64"
    );
    assert_eq!(
        refused("--window 1KiB"),
        "--window is 1 KiB, smaller than a slot of 4 KiB; give a larger --window or a smaller --slot"
    );
    assert_eq!(
        refused("--window 10KiB"),
        "--window is 10 KiB, which is not whole slots of 4 KiB; give for example 8192"
    );
    assert_eq!(refused("--window 2GiB"), "--window is 2 GiB; give at most 1 GiB");
    let whole = "18446744073709551615";
    assert!(refused(&format!("--slot {whole}")).contains("no multiple of 64"));
}

#[test]
fn numbers() {
    assert_eq!(refused("--messages 0"), "--messages is 0; give at least 1");
    assert_eq!(refused("--engines 0"), "--engines is 0; give a number from 1 to 64");
    assert_eq!(refused("--copy-threads 65"), "--copy-threads is 65; give a number from 0 to 64");
    assert!(refused("--copy-threads 2 --link shm").contains("packet link"));
    assert!(refused("--copy-threads 2 --engine gpu:0").contains("on a GPU"));
    assert_eq!(refused("--blocks 65"), "--blocks is 65; give a number from 1 to 64");
    assert!(refused("--blocks 2 --qps 2").starts_with("--qps with --blocks 2; leave it out: "));
    assert!(refused("--blocks 2 --in-flight 8").starts_with("--in-flight with --blocks 2; "));
    assert_eq!(plan("--blocks 2").unwrap().blocks, 2);
    assert_eq!(refused("--qps 5000"), "--qps is 5000; give a number from 1 to 8");
    assert_eq!(refused("--timeout-ms 0"), "--timeout-ms is 0; give a number from 1 to 600000");
    for seconds in ["0", "-1", "inf", "NaN", "3601"] {
        assert_eq!(
            refused(&format!("--seconds {seconds}")),
            format!("--seconds is {seconds}; give more than 0 and at most 3600")
        );
    }
    let empty = BenchArgs { nic: " ".into(), ..Bench::parse_from(["bench"]).args };
    assert!(BenchPlan::try_from(&empty).unwrap_err().to_string().starts_with("--nic is empty"));
}
