package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ofPrograms are the variables of the flags of both programs, without their beginning; those of
// the parameters of methods are the same in both.
var ofPrograms = strings.Fields(`
	ADD_GENERATION_PROMPT ADD_VISION_ID AGAINST ALL ALLOWED_HOSTS ALLOWED_MEDIA_DOMAINS
	ANSWERS API_KEY BAD BASE BATCH_DIR BATCH_PARALLEL CACHE_DIR
	CACHE_DIR_MB CACHE_ISOLATION CACHE_MB CACHE_TYPE CANCEL CARD CLIENTS COMPARE COMPARE_SPLIT
	COMPAT CONTINUE_FINAL_MESSAGE CORS_ORIGINS COUNTS CPU_PROFILE CTX_SIZE CUT DATA DETAIL
	DISABLE DISTANCE DRAIN_TIMEOUT ENCODED ENCODER_QUANT EXIF FEATURE_STORE FETCH_TIMEOUT FILE_DAYS FIRST_SEED
	FOLLOW_UP FORMAT FPS FRESH GAMMA GEN GRID HISTORY HOST HUB IGNORE_EOS IMAGE IMAGES
	IMAGE_TOKEN IN INCLUDE JOURNAL JSON JUDGE JUDGE_MODEL KEEP_RATIO KERNEL KV_MB LIMIT LIMITS
	LISTEN LMMS_OUT LOG_FORMAT M MAX_BODY_MB MAX_FILE_MB MAX_IMAGES MAX_IMAGE_MB
	MAX_IMAGE_PIXELS MAX_PIXELS MEAN MEDIA_PATH MEMORY METHODS MIN_P MIN_PIXELS MIXED
	MMPROJ MODEL N NATS NATS_CA NATS_CREDS NATS_REPLICAS N_PREDICT N_VIS ONCE OPENAI OUT OUTPUT
	OVERLAY OVERLAY_STAGES OVER_BASE PAD PARALLEL PARAMETERS PATCHES PEER PICTURE PICTURES
	PLANS PLOT PORT PRESET PRINT_PROMPTS PROCESSOR PROMPT PROTOCOL PULL QUANT QUEUE
	QUIET READ_TIMEOUT RECORDS REPEAT REQUESTS REQUEST_TIMEOUT ROWS SEED
	SERVER SHAPE SHARD SIZE SPECIAL_TOKENS SPLIT SSE_PING STREAMS STRICT SUBMISSION
	SYSTEM_PROMPT TEMP TEMPLATE TEXT THREADS TIME TLS TOKENIZER TOKENS TOOLS TOP_K
	TOP_P TYPE UNORDERED VARIANT VERBOSE VERIFY VIDEO_FRAMES WHOLE WORKERS WORLD YES
`)

// variablePrefix begins the variables of flags.
const variablePrefix = "RESTORE_"

// flagVariables are the variables of all flags of a command and its subcommands.
func flagVariables(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if HasVariable(f) {
			names = append(names, EnvName(f))
		}
	})
	for _, c := range cmd.Commands() {
		names = append(names, flagVariables(c)...)
	}
	return names
}

// ListedVariables are the variables of both programs' flags.
func ListedVariables() (names []string) {
	for _, v := range ofPrograms {
		names = append(names, variablePrefix+v)
	}
	return names
}

// noteUnknown names the variables that look like those of flags, but are not.
func noteUnknown(a *App, cmd *cobra.Command) {
	if quiet := cmd.Flags().Lookup("quiet"); a.Environ == nil ||
		quiet != nil && quiet.Value.String() == "true" {
		return
	}
	known := append(flagVariables(cmd.Root()), ListedVariables()...)
	var unknown []string
	for _, pair := range a.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, variablePrefix) && value != "" && !slices.Contains(known, name) {
			unknown = append(unknown, name+DidYouMean(name, known))
		}
	}
	slices.Sort(unknown)
	if len(unknown) > 0 {
		a.Note("no flag has the variable %s", strings.Join(unknown, "; "))
	}
}
