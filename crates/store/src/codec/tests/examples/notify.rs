//! Random examples of whom a job tells.

use gangline_base::{EmailAddress, Notify, Occasion, WebhookUrl};

use super::Examples;

impl Examples {
    pub(super) fn notify(&mut self) -> Notify {
        if !self.has_network {
            return Notify::default();
        }
        let webhook = self.maybe(|_| WebhookUrl::new("https://hooks.example.org/a/b?c=d").expect("a URL"));
        let email = self.maybe(|_| EmailAddress::new("me@example.org").expect("an address"));
        Notify { webhook, email, on: Occasion::ALL.into_iter().filter(|_| self.below(2) == 0).collect() }
    }
}
