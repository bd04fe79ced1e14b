use super::*;

#[test]
fn an_engine_that_never_stepped_has_no_age() {
    let script: Script =
        "[[fault]]\non = \"device\"\naction = \"fatal\"\nafter = \"1ms\"\n".parse().unwrap();
    let faults = ScriptedFaults::new(&script, 0, None);
    assert_eq!(faults.age_ns(), 0);
    faults.begin_step(5_000_000);
    assert!(!faults.ends_device(), "time counts from the first step");
    faults.begin_step(6_000_000);
    assert!(faults.ends_device());
    faults.begin_step(7_000_000);
    assert!(!faults.ends_device(), "once");
}
