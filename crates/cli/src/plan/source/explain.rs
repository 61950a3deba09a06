//! Explains stated break-evens: which assumptions would make them right.

use gangline_planning::sourcing::break_even::{Stated, StatedReservation};
use gangline_planning::units::Dollars;

const EXAMPLES: &str = "write price=2.5e6,accelerators=64,rent=12.25,months=18 or reserved=1.80,hourly=3,use=0.75";
/// Maximum figure that is accepted.
const VALUE_MAX: f64 = 1e15;

/// A stated break-even.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Claim {
    /// Owning pays off after this many months.
    Owning(Stated),
    /// A reservation pays off from this utilisation on.
    Reserving(StatedReservation),
}

/// Parses stated figures.
pub(super) fn stated(text: &str) -> Result<Claim, String> {
    const KEYS: [&str; 7] = ["price", "accelerators", "rent", "months", "reserved", "hourly", "use"];
    let mut found = [None; KEYS.len()];
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or(EXAMPLES)?;
        let at = KEYS.iter().position(|known| *known == key.trim());
        let at = at.ok_or_else(|| format!("`{key}` isn't known: {EXAMPLES}"))?;
        let value: f64 = value.trim().parse().map_err(|_| format!("`{value}` is no number: {EXAMPLES}"))?;
        if !(value > 0.0 && value < VALUE_MAX) {
            return Err(format!("{key} must be above 0: {EXAMPLES}"));
        }
        found[at] = Some(value);
    }
    match found {
        [Some(price), Some(accelerators), Some(rent), Some(months), None, None, None] => {
            Ok(Claim::Owning(Stated { price: Dollars::new(price), accelerators, rent: Dollars::new(rent), months }))
        }
        [None, None, None, None, Some(reserved), Some(hourly), Some(utilisation)] if utilisation <= 1.0 => {
            let (reserved, on_demand) = (Dollars::new(reserved), Dollars::new(hourly));
            Ok(Claim::Reserving(StatedReservation { reserved, on_demand, utilisation }))
        }
        _ => Err(EXAMPLES.to_owned()),
    }
}

impl Claim {
    pub(super) fn explained(&self) -> String {
        match self {
            Claim::Owning(stated) => owning(stated),
            Claim::Reserving(stated) => reserving(stated),
        }
    }
}

fn owning(stated: &Stated) -> String {
    let explanation = stated.explanation();
    let use_of = if explanation.utilisation > 1.0 {
        "no use explains it".to_owned()
    } else {
        format!("{:.0} % use", explanation.utilisation * 100.0)
    };
    let running = if explanation.running < Dollars::ZERO {
        "no running costs explain it".to_owned()
    } else {
        format!("running costs of ${:.0} a month", explanation.running.get())
    };
    format!(
        "\nA break-even of {} months for ${:.0} and {:.0} accelerators at ${:.2} an hour: price and rent alone say {:.1}. It takes one of: {use_of}; a rent of ${:.2}; {running}.\n",
        stated.months,
        stated.price.get(),
        stated.accelerators,
        stated.rent.get(),
        explanation.months,
        explanation.rent.get()
    )
}

fn reserving(stated: &StatedReservation) -> String {
    let explanation = stated.explanation();
    let flexibility = if explanation.flexibility < Dollars::ZERO {
        "nothing that being free to leave is worth explains it".to_owned()
    } else {
        format!("being free to leave is worth ${:.2} an hour", explanation.flexibility.get())
    };
    format!(
        "\nA reservation at ${:.2} against ${:.2} by the hour that pays from {:.0} % use on: the rents alone say {:.0} %. It takes one of: {flexibility}; a reservation at ${:.2}; ${:.2} by the hour.\n",
        stated.reserved.get(),
        stated.on_demand.get(),
        stated.utilisation * 100.0,
        explanation.utilisation * 100.0,
        explanation.reserved.get(),
        explanation.on_demand.get()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_break_evens_are_explained() {
        let said = |text: &str| stated(text).unwrap().explained();
        let cluster = said("price=2.5e6,accelerators=64,rent=12.25,months=18");
        assert!(cluster.contains("price and rent alone say 4.4"), "{cluster}");
        let reservation = said("reserved=1.80,hourly=3,use=0.75");
        assert!(reservation.contains("the rents alone say 60 %"), "{reservation}");
        assert!(
            reservation.contains("being free to leave is worth $0.45 an hour; a reservation at $2.25; $2.40"),
            "{reservation}"
        );
        assert!(said("reserved=1.80,hourly=3,use=0.5").contains("nothing that being free"));
    }

    #[test]
    fn what_is_no_claim_is_refused_with_how_to_write_one() {
        for text in
            ["", "price", "price=1", "reserved=1,hourly=2,use=1.5", "price=0,months=1", "use=x", "reserved=1,months=2"]
        {
            assert!(stated(text).unwrap_err().contains("reserved=1.80,hourly=3,use=0.75"), "{text}");
        }
    }
}
