//! The control plane beyond loopback: by TLS, with a certificate that only its data folder vouches for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::fixtures::product::Product;

/// Reached at this address of loopback, though it listens on all.
fn open_at(address: &str) -> Product {
    let mut product = Product::down(&["a=cpu:1"]);
    product.listen("0.0.0.0:0");
    product.option("--advertise", address);
    product
}

fn certificate(product: &Product) -> String {
    std::fs::read_to_string(product.data().join("certificate.pem")).expect("a certificate")
}

#[test]
fn beyond_loopback_everything_goes_by_tls() {
    let mut product = open_at("127.0.0.2");
    product.start();
    let url = product.url();
    let address = url.strip_prefix("https://").expect("an https URL");
    assert!(address.starts_with("127.0.0.2:"), "{address}");
    let id = product.submit("name: short\nrun: echo said\n");
    product.wait_state(&id, "succeeded");
    assert!(product.run(&["logs", &id]).stdout.contains("said"));

    let mut plain = TcpStream::connect(address).expect("it listens");
    plain.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    plain.write_all(b"GET /api/v1/health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it is sent");
    let mut answer = Vec::new();
    // However it ends, there is no answer.
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "in the clear nobody answers");
}

/// Proves A-13: a supervisor takes up with a control plane that has another address and another certificate.
#[test]
fn a_job_goes_on_under_a_control_plane_with_another_certificate() {
    let mut product = open_at("127.0.0.2");
    product.start();
    let id = product.submit("name: long\nrun: sleep 4\n");
    product.wait_state(&id, "running");
    let before = certificate(&product);
    product.kill_control_plane();
    product.change("--advertise", "127.0.0.3");
    product.start();
    assert!(product.url().starts_with("https://127.0.0.3:"));
    assert_ne!(certificate(&product), before, "the first one isn't good for the new address");
    let job = product.wait_state(&id, "succeeded");
    assert_eq!((job["attempts"].as_array().map(Vec::len), job["faults"].as_u64()), (Some(1), Some(0)), "{job:#}");
}

#[test]
fn a_control_plane_that_nobody_vouches_for_gets_no_token() {
    let mut product = open_at("127.0.0.2");
    product.start();
    let mut other = open_at("127.0.0.2");
    other.start();
    let url = product.url();
    let refused = |arguments: &[&str]| {
        let ran = product.run(&[&["ps"], arguments].concat());
        assert_ne!(ran.code, 0, "{arguments:?}: {}", ran.stdout);
        ran.stderr
    };
    let foreign = other.data().join("certificate.pem");
    let said = refused(&["--certificate", foreign.to_str().expect("text")]);
    assert!(said.contains("isn't the control plane that is trusted") && said.contains("--certificate"), "{said}");
    let elsewhere = url.replace("127.0.0.2", "127.0.0.3");
    let said = refused(&["--url", &elsewhere]);
    assert!(said.contains("isn't the control plane that is trusted"), "its certificate isn't for that address: {said}");
    let said = refused(&["--certificate", "/no/such/file.pem"]);
    assert!(said.contains("/no/such/file.pem"), "{said}");
    let token = product.data().join("token");
    let said = refused(&["--certificate", token.to_str().expect("text")]);
    assert!(said.contains("no certificate"), "{said}");
}

#[test]
fn what_cannot_be_listened_as_is_refused_at_the_start() {
    let refused = |options: &[(&str, &str)]| {
        let mut product = Product::down(&["a=cpu:1"]);
        product.listen("0.0.0.0:0");
        for (name, value) in options {
            product.option(name, value);
        }
        let ran = product.start_refused();
        assert_ne!(ran.code, 0);
        ran.stderr
    };
    let said = refused(&[("--advertise", "no-such-host.invalid")]);
    assert!(said.contains("G0503") && said.contains("no-such-host.invalid"), "{said}");
    let files = [("--tls-certificate", "/no/such/file.pem"), ("--tls-key", "/no/such/key.pem")];
    let said = refused(&[&[("--advertise", "127.0.0.1")], files.as_slice()].concat());
    assert!(said.contains("G0506") && said.contains("/no/such/file.pem"), "{said}");
    let said = refused(&[("--tls-key", "/no/such/key.pem")]);
    assert!(said.contains("--tls-certificate"), "{said}");

    let mut product = Product::down(&["a=cpu:1"]);
    product.option("--advertise", "127.0.0.2");
    let said = product.start_refused().stderr;
    assert!(said.contains("G0503") && said.contains("--listen 0.0.0.0"), "on loopback nobody else reaches it: {said}");
}
