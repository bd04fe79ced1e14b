use super::*;

/// Only what takes a queue pair to ERR between its reset and its connection explains that it does not connect.
#[test]
fn a_connection_fails_by_faults_that_strike_meanwhile_alone() {
    let kinds = [None, Some(Kind::Wqe), Some(Kind::Cqe), Some(Kind::Packets)];
    let state = |from| Error::Nic(NicError::State { qpn: 1, from, to: QpState::Rtr });
    let gone = || Error::Nic(NicError::Engine("ended".into()));
    let [time, device] = [Some(Kind::Time), Some(Kind::Device)];
    assert!(ended_by(device, &state(QpState::Err)) && ended_by(time, &state(QpState::Err)));
    assert!(ended_by(device, &gone()) && !ended_by(time, &gone()));
    for kind in kinds {
        assert!(!ended_by(kind, &state(QpState::Err)) && !ended_by(kind, &gone()), "{kind:?}");
    }
    for kind in kinds.into_iter().chain([time, device]) {
        assert!(!ended_by(kind, &state(QpState::Rts)), "{kind:?}");
        assert!(!ended_by(kind, &Error::PeerNotReset), "{kind:?}");
    }
}
