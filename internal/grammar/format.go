package grammar

import (
	"maps"
	"slices"
)

// Parts of the formats.
const (
	// years from 1 on, which is the first of most libraries
	year     = `(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])`
	leapYear = `(?:(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00))`
	fullDate = `(?:` + year + `-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|` +
		`(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|` + leapYear + `-02-29)`
	clock  = `(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?`
	offset = `(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)`
	octet  = `(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
	group  = `[0-9a-fA-F]{1,4}`
	label  = `[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*`
	domain = `(?:` + label + `\.)+[A-Za-z]{2,}`
	timed  = `T(?:\d{1,4}H(?:\d{1,4}M(?:\d{1,4}S)?)?|\d{1,4}M(?:\d{1,4}S)?|\d{1,4}S)`
	inURI  = `(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})`
)

// formats are the supported values of the keyword format, as patterns. They are RFC 3339's dates
// and times, and its durations, with at most four digits a part; addresses of the internet whose
// names have at most 63 characters; and URIs of the web. All libraries accept them.
var formats = map[string]string{
	"date":      `^` + fullDate + `$`,
	"time":      `^` + clock + offset + `$`,
	"date-time": `^` + fullDate + `T` + clock + offset + `$`,
	"duration": `^P(?:\d{1,4}W|(?:\d{1,4}Y(?:\d{1,4}M(?:\d{1,4}D)?)?|\d{1,4}M(?:\d{1,4}D)?|` +
		`\d{1,4}D)(?:` + timed + `)?|` + timed + `)$`,
	"uuid": `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`,
	"ipv4": `^` + octet + `(?:\.` + octet + `){3}$`,
	"ipv6": `^(?:(?:` + group + `:){7}` + group + `|` +
		`(?:` + group + `:){1,7}:|:(?::` + group + `){1,7}|::|` +
		`(?:` + group + `:){1,6}(?::` + group + `){1}|(?:` + group + `:){1,5}(?::` + group +
		`){1,2}|(?:` + group + `:){1,4}(?::` + group + `){1,3}|(?:` + group + `:){1,3}(?::` +
		group + `){1,4}|(?:` + group + `:){1,2}(?::` + group + `){1,5}|` + group + `:(?::` +
		group + `){1,6})$`,
	"email":    `^(?=[^@]{1,64}@[^@]{4,63}$)[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@` + domain + `$`,
	"hostname": `^(?=.{1,63}$)(?:` + label + `\.)*[A-Za-z](?:-?[A-Za-z0-9]+)*$`,
	"uri": `^(?=.{1,8}//[^/?#:]{4,63}(?:[/?#:]|$))https?://` + domain +
		`(?::[1-9]\d{0,3})?(?:/` + inURI + `*)*(?:\?(?:` + inURI + `|[/?])*)?(?:#(?:` + inURI +
		`|[/?])*)?$`,
}

// bareTime is the format time next to a pattern: Zod's times have no offset.
const bareTime = `^` + clock + offset + `?$`

// formatNames lists the supported formats.
func formatNames() []string { return slices.Sorted(maps.Keys(formats)) }
